"""The project's C++ rules: native ones with our warnings, and Catch2 for tests."""

_COPTS = [
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-missing-field-initializers",
    "-Wno-deprecated-declarations",
]

def latentd_cc_library(name, copts = [], **kwargs):
    native.cc_library(name = name, copts = _COPTS + copts, **kwargs)

def latentd_cc_binary(name, copts = [], **kwargs):
    native.cc_binary(name = name, copts = _COPTS + copts, **kwargs)

def latentd_cc_test(name, srcs, deps = [], size = "small", copts = [], **kwargs):
    """A Catch2 test. small: one process, no sleep; medium: several processes; large: a whole daemon."""
    native.cc_test(
        name = name,
        srcs = srcs,
        copts = _COPTS + copts,
        size = size,
        deps = deps + ["//tests/support:catch"],
        **kwargs
    )
