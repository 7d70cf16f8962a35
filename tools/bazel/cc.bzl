"""The project's C++ rules: native ones with our warnings, and Catch2 for tests."""

load("@system//:compiler.bzl", "WARNINGS_ARE_ERRORS")

_COPTS = [
    "-Wall",
    "-Wextra",
] + (["-Werror"] if WARNINGS_ARE_ERRORS else ["-Wno-array-bounds", "-Wno-overloaded-virtual"]) + [
    "-Wno-missing-field-initializers",
    "-Wno-deprecated-declarations",
]

def latentd_cc_library(name, copts = [], **kwargs):
    native.cc_library(name = name, copts = _COPTS + copts, **kwargs)

def latentd_cc_binary(name, copts = [], linkopts = [], **kwargs):
    # In the tarball the distribution's libraries lie in lib/ beside bin/.
    native.cc_binary(name = name, copts = _COPTS + copts, linkopts = linkopts + ["-Wl,-rpath,$$ORIGIN/../lib"], **kwargs)

def latentd_cc_test(name, srcs, deps = [], size = "small", copts = [], tags = [], **kwargs):
    """A Catch2 test. small: one process, no sleep; medium: several processes; large: a whole daemon.

    Its cases are a library too, NAME_cases, so that //tests:latentd-tests can hold those of many tests.
    """
    native.cc_library(
        name = name + "_cases",
        testonly = True,
        srcs = srcs,
        alwayslink = True,
        copts = _COPTS + copts,
        tags = ["manual"],
        visibility = ["//tests:__subpackages__"],
        deps = deps + ["//tests/support:catch_header"],
    )
    native.cc_test(
        name = name,
        size = size,
        tags = tags,
        deps = [":" + name + "_cases", "//tests/support:catch"],
        **kwargs
    )

def latentd_emulated_test(name, of, size = "large", **kwargs):
    """The cases of the test `of`, which needs a GPU, on the emulation of the CUDA runtime's calls."""
    native.cc_test(
        name = name,
        size = size,
        deps = [":" + of + "_cases", "//tests/support:catch", "//tests/support/cuda_emulation"],
        **kwargs
    )
