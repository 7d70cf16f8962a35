#include <chrono>
#include <random>

#include "runtime/config/plan.h"
#include "tests/runtime/config/topology_fixture.h"
#include "tests/support/catch.h"

namespace latentd::config {
namespace {

const std::string kSeedFile = kThreeGroups + R"(http: "[::1]:0"
spool: {dir: out, bytes_max: 3MiB, retention: 90s}
queue: {length_max: 7, aging: 5s}
deadlines: {load: 3s, heartbeat: 100ms, heartbeat_miss: 700ms}
defaults: {frames: 17, size: 128x64, guidance: 2.5, negative_prompt: "a \"dull\" one"}
limits: {frames_max: 100, job_retention: 11s}
)";

// What makes YAML behave differently.
const char* const kTokens[] = {":",  ": ",   "-",   "- ",  "[",    "]",    "{",    "}",   ",",
                               "\n", "\n\n", "  ",  "#",   "&a",   "*a",   "!!",   "? ",  "|",
                               ">",  "'",    "\"",  "\\",  "---",  "...",  "~",    "<<",  "null",
                               "%",  "@",    "`",   "\t",  "\r",   "\xff", "0",    "-1",  "1e999",
                               "[[", "{{",   "cpu", "nan", "\x7f", "é",    "1GiB", "10d", "99999999999999999999"};

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  std::string mutate(std::string text) {
    const size_t edits = 1 + pick(8);
    for (size_t i = 0; i < edits; ++i)
      edit(text);
    return text;
  }

 private:
  size_t pick(size_t bound) { return random_() % bound; }

  void edit(std::string& text) {
    if (text.empty()) text = " ";
    const size_t at = pick(text.size());
    const size_t length = 1 + pick(std::min<size_t>(20, text.size() - at));
    switch (pick(6)) {
      case 0:
        text.erase(at, length);
        break;
      case 1:
        text.insert(at, kTokens[pick(std::size(kTokens))]);
        break;
      case 2:
        text[at] = static_cast<char>(pick(256));
        break;
      case 3:
        text.insert(at, text.substr(pick(text.size()), length));
        break;
      case 4:
        text.resize(at);
        break;
      case 5:
        text.replace(at, length, kTokens[pick(std::size(kTokens))]);
        break;
    }
  }

  std::mt19937_64 random_;
};

// Every mutation gives a topology whose plan prints, or a status that names the file.
void fuzz(uint64_t seed, int rounds) {
  INFO("seed " << seed);
  Mutator mutator(seed);
  int accepted = 0;
  for (int i = 0; i < rounds; ++i) {
    const std::string yaml = mutator.mutate(kSeedFile);
    const StatusOr<Topology> topology = parse(yaml);
    if (topology.ok()) {
      ++accepted;
      REQUIRE(planText(*topology, findingsFor(*topology), namedPlaces).find("groups") != std::string::npos);
      REQUIRE(!planJson(*topology, findingsFor(*topology)).empty());
      REQUIRE(topology->stages.size() <= topology->groups.size());
    } else {
      INFO(yaml);
      REQUIRE(messageOf(topology.status()).starts_with("t.yaml:"));
    }
  }
  // Both kinds must be met, or the mutations are too weak or too strong to tell anything.
  CHECK(accepted > 0);
  CHECK(accepted < rounds);
}

}  // namespace

TEST_CASE("config: mutated files give a topology or a status, never a crash", "[config][fuzz]") { fuzz(7, 4000); }

TEST_CASE("config: mutated files from a random seed, for minutes", "[.][config][fuzz]") {
  const uint64_t seed = std::random_device()();
  fuzz(seed, 1'000'000);
}

TEST_CASE("config: files made to be expensive are refused fast", "[config][fuzz]") {
  const auto start = std::chrono::steady_clock::now();
  const size_t half_megabyte = 1 << 19;
  std::string many_keys;
  for (int i = 0; i < 20'000; ++i)
    many_keys += "key" + std::to_string(i) + ": 1\n";
  const std::string expensive[] = {
      std::string(half_megabyte, '['),
      std::string(half_megabyte, '{'),
      "a: " + std::string(half_megabyte, '"'),
      "groups: [" + std::string(half_megabyte, ',') + "]",
      many_keys,
      std::string(half_megabyte, 'x') + ": 1\n",
      "a: &a [x]\nb: &b [*a, *a, *a, *a]\nc: &c [*b, *b, *b, *b]\n",
  };
  for (const std::string& yaml : expensive)
    CHECK_FALSE(parse(yaml).ok());
  // Half a second alone; the bound leaves room for a loaded machine and is far below what a bomb would take.
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(30));
}

}  // namespace latentd::config
