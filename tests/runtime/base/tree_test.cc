#include "runtime/base/tree.h"

#include "tests/support/catch.h"

namespace latentd {
namespace {

using IntTree = Tree<char>;

IntTree sample() {
  IntTree::List list{{IntTree('a'), IntTree(int64_t{7})}};
  IntTree::Dict dict;
  dict.entries.emplace_back("first", IntTree(std::move(list)));
  dict.entries.emplace_back("second", IntTree(IntTree::Tuple{{IntTree('b'), IntTree(true), IntTree()}}));
  return IntTree(std::move(dict));
}

TEST_CASE("tree: leaves are visited depth first, in order", "[base]") {
  std::string seen;
  sample().forEachLeaf([&](char leaf) { seen.push_back(leaf); });
  CHECK(seen == "ab");
}

TEST_CASE("tree: mapping keeps structure and scalars", "[base]") {
  const auto mapped = sample().mapLeaves<std::pair<char, int>>([](char leaf) { return std::pair(leaf, 1); });
  const auto* tuple = mapped.find("second")->getIf<Tree<std::pair<char, int>>::Tuple>();
  REQUIRE(tuple != nullptr);
  REQUIRE(tuple->items.size() == 3);
  CHECK((*tuple->items[0].getIf<std::pair<char, int>>() == std::pair('b', 1)));
  CHECK(*tuple->items[1].getIf<bool>());
  CHECK(tuple->items[2].getIf<Tree<std::pair<char, int>>::Null>() != nullptr);
  CHECK(mapped.find("third") == nullptr);
}

}  // namespace
}  // namespace latentd
