#include "runtime/config/schema.h"

#include <fstream>
#include <sstream>

#include "runtime/config/yaml_document.h"
#include "tests/runtime/config/topology_fixture.h"
#include "tests/support/catch.h"

namespace latentd::config {
namespace {

bool isContainer(const Key& key) { return key.rule.type == Type::kSection || key.rule.type == Type::kList; }

}  // namespace

TEST_CASE("schema: every key is documented, bound and unique", "[config][schema]") {
  const KeyTable table;
  for (const Key& key : table.keys) {
    INFO(key.path);
    CHECK(table.find(key.path) == &key);
    CHECK(!key.meaning.empty());
    CHECK(key.meaning.back() == '.');
    CHECK(!describe(key.rule).empty());
    CHECK(static_cast<bool>(key.assign) == !isContainer(key));
    const size_t dot = key.path.rfind('.');
    if (dot == std::string::npos) continue;
    std::string section = key.path.substr(0, dot);
    if (section.ends_with("[]")) section.resize(section.size() - 2);
    CHECK(table.find(section) != nullptr);
  }
}

TEST_CASE("schema: each documented default is a valid value and prints as itself", "[config][schema]") {
  const KeyTable table;
  size_t defaults = 0;
  for (const Key& key : table.keys) {
    if (key.default_text.empty()) continue;
    INFO(key.path);
    const StatusOr<Value> value = parseScalar(key.rule, key.default_text);
    REQUIRE(value.ok());
    CHECK(formatValue(key.rule, *value) == key.default_text);
    ++defaults;
  }
  CHECK(defaults > 30);
}

TEST_CASE("schema: the example of a size or a time is one of its valid values", "[config][schema]") {
  const KeyTable table;
  const std::string sign = ", such as ";
  size_t examples = 0;
  for (const Key& key : table.keys) {
    if (key.rule.type != Type::kBytes && key.rule.type != Type::kDuration) continue;
    INFO(key.path);
    const std::string text = describe(key.rule);
    REQUIRE(text.find(sign) != std::string::npos);
    CHECK(parseScalar(key.rule, text.substr(text.find(sign) + sign.size())).ok());
    ++examples;
  }
  CHECK(examples > 15);
}

TEST_CASE("schema: the bounds of a range are inside it, the next values are not", "[config][schema]") {
  const KeyTable table;
  for (const Key& key : table.keys) {
    INFO(key.path);
    const auto accepts = [&](double amount) {
      if (key.rule.type == Type::kBytes) return parseScalar(key.rule, std::to_string(uint64_t(amount)) + "B").ok();
      if (key.rule.type == Type::kDuration) return parseScalar(key.rule, std::to_string(int64_t(amount)) + "ms").ok();
      return parseScalar(key.rule, std::to_string(int64_t(amount))).ok();
    };
    const bool is_number = key.rule.type == Type::kBytes || key.rule.type == Type::kDuration ||
                           key.rule.type == Type::kCount || key.rule.type == Type::kInteger;
    if (!is_number) continue;
    CHECK(accepts(key.rule.range.min));
    CHECK(accepts(key.rule.range.max));
    CHECK_FALSE(accepts(key.rule.range.max + 1));
    CHECK((key.rule.range.min == 0 || !accepts(key.rule.range.min - 1)));
  }
}

TEST_CASE("schema: the printed schema is YAML in which every key stands with its default", "[config][schema]") {
  const KeyTable table;
  const std::string text = printSchema(table);
  const StatusOr<Node> root = parseYaml(text, "schema");
  INFO(messageOf(root.status()));
  REQUIRE(root.ok());
  for (const Key& key : table.keys) {
    INFO(key.path);
    CHECK(text.find("# " + key.meaning + "\n") != std::string::npos);
    CHECK(text.find("# Value: " + describe(key.rule) + ".") != std::string::npos);
  }
}

TEST_CASE("schema: the printed schema loads once what is required is filled in", "[config][schema]") {
  std::string text = printSchema(KeyTable());
  CHECK(refusal(text).find("groups[0].name: missing") != std::string::npos);
  text = with(text, "    # name:\n", "    name: one\n");
  text = with(text, "    # stage:\n", "    stage: noop\n");
  text = with(text, "    # method:\n", "    method: run\n");
  text = text.substr(0, text.find("edges:")) + text.substr(text.find("# Parameters of a job where"));
  const StatusOr<Topology> documented = parse(text);
  INFO(refusal(text));
  REQUIRE(documented.ok());
  const StatusOr<Topology> minimal = parse("groups: [{name: one, stage: noop, method: run}]\n");
  REQUIRE(minimal.ok());
  CHECK(documented->deadlines.encode == minimal->deadlines.encode);
  CHECK(documented->limits.pixels_max == minimal->limits.pixels_max);
  CHECK(documented->groups[0].parallel.product() == minimal->groups[0].parallel.product());
  CHECK(documented->spool.retention == minimal->spool.retention);
}

}  // namespace latentd::config
