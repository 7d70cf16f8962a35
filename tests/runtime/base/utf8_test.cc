#include "runtime/base/utf8.h"

#include "tests/support/catch.h"

namespace latentd {

TEST_CASE("utf8: the first invalid byte is found, in every kind of damage", "[base]") {
  CHECK(!firstInvalidUtf8(""));
  CHECK(!firstInvalidUtf8("plain"));
  CHECK(!firstInvalidUtf8("\xc2\x80 \xe0\xa0\x80 \xed\x9f\xbf \xef\xbf\xbd \xf0\x90\x80\x80 \xf4\x8f\xbf\xbf"));
  CHECK(firstInvalidUtf8("ab\x80") == 2);            // continuation without a lead
  CHECK(firstInvalidUtf8("a\xc3") == 1);             // cut
  CHECK(firstInvalidUtf8("\xc0\xaf") == 0);          // overlong
  CHECK(firstInvalidUtf8("\xe0\x9f\xbf") == 0);      // overlong
  CHECK(firstInvalidUtf8("\xed\xa0\x80") == 0);      // surrogate
  CHECK(firstInvalidUtf8("\xf0\x8f\xbf\xbf") == 0);  // overlong
  CHECK(firstInvalidUtf8("\xf4\x90\x80\x80") == 0);  // above U+10FFFF
  CHECK(firstInvalidUtf8("\xe2\x82(") == 0);         // wrong third byte
}

TEST_CASE("utf8: damage is described for people", "[base]") {
  CHECK(!describeInvalidUtf8("caf\xc3\xa9"));
  CHECK(describeInvalidUtf8("caf\xe9") == "is not UTF-8: byte 0xe9 at offset 3; send it as UTF-8");
}

}  // namespace latentd
