#pragma once

// Debian 12 has Catch2 2.13, Ubuntu 24.04 has 3.x: the tests use what both have.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif
