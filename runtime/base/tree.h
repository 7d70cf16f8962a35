#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace latentd {

// A nested value as stages exchange it: dictionaries, lists and tuples over leaves and scalars. Leaf is at::Tensor in
// stages and channel::TensorView in the data plane; the structure survives the trip unchanged. A value type.
template <class Leaf>
class Tree {
 public:
  struct Null {
    friend bool operator==(const Null&, const Null&) = default;
  };
  // Keys keep their order.
  struct Dict {
    std::vector<std::pair<std::string, Tree>> entries;
  };
  struct List {
    std::vector<Tree> items;
  };
  struct Tuple {
    std::vector<Tree> items;
  };
  using Value = std::variant<Null, bool, int64_t, double, std::string, Leaf, Dict, List, Tuple>;

  Tree() = default;
  Tree(Value value) : value_(std::move(value)) {}  // NOLINT: implicit, so that literals read well

  const Value& value() const { return value_; }
  Value& value() { return value_; }

  template <class T>
  const T* getIf() const {
    return std::get_if<T>(&value_);
  }
  template <class T>
  T* getIf() {
    return std::get_if<T>(&value_);
  }

  // The entry of a dictionary; null if this is no dictionary or has no such key.
  const Tree* find(std::string_view key) const {
    const Dict* dict = getIf<Dict>();
    if (dict == nullptr) return nullptr;
    for (const auto& [name, entry] : dict->entries) {
      if (name == key) return &entry;
    }
    return nullptr;
  }

  // Calls visit(leaf) for every leaf, depth first, in order.
  template <class Visit>
  void forEachLeaf(Visit&& visit) const {
    if (const Leaf* leaf = getIf<Leaf>()) {
      visit(*leaf);
    } else if (const Dict* dict = getIf<Dict>()) {
      for (const auto& entry : dict->entries)
        entry.second.forEachLeaf(visit);
    } else if (const List* list = getIf<List>()) {
      for (const Tree& item : list->items)
        item.forEachLeaf(visit);
    } else if (const Tuple* tuple = getIf<Tuple>()) {
      for (const Tree& item : tuple->items)
        item.forEachLeaf(visit);
    }
  }

  // The same structure with every leaf replaced by map(leaf), in the order of forEachLeaf.
  template <class OtherLeaf, class Map>
  Tree<OtherLeaf> mapLeaves(Map&& map) const {
    using Other = Tree<OtherLeaf>;
    if (const Leaf* leaf = getIf<Leaf>()) return Other(typename Other::Value(OtherLeaf(map(*leaf))));
    if (const Dict* dict = getIf<Dict>()) {
      typename Other::Dict mapped;
      for (const auto& [key, entry] : dict->entries) {
        mapped.entries.emplace_back(key, entry.template mapLeaves<OtherLeaf>(map));
      }
      return Other(typename Other::Value(std::move(mapped)));
    }
    if (const List* list = getIf<List>()) return Other(mapItems<typename Other::List, OtherLeaf>(*list, map));
    if (const Tuple* tuple = getIf<Tuple>()) return Other(mapItems<typename Other::Tuple, OtherLeaf>(*tuple, map));
    return mapScalar<OtherLeaf>();
  }

 private:
  template <class OtherSequence, class OtherLeaf, class Sequence, class Map>
  static typename Tree<OtherLeaf>::Value mapItems(const Sequence& sequence, Map& map) {
    OtherSequence mapped;
    for (const Tree& item : sequence.items)
      mapped.items.push_back(item.template mapLeaves<OtherLeaf>(map));
    return mapped;
  }

  template <class OtherLeaf>
  Tree<OtherLeaf> mapScalar() const {
    using OtherValue = typename Tree<OtherLeaf>::Value;
    if (const bool* flag = getIf<bool>()) return OtherValue(*flag);
    if (const int64_t* integer = getIf<int64_t>()) return OtherValue(*integer);
    if (const double* real = getIf<double>()) return OtherValue(*real);
    if (const std::string* text = getIf<std::string>()) return OtherValue(*text);
    return OtherValue(typename Tree<OtherLeaf>::Null{});
  }

  Value value_;
};

}  // namespace latentd
