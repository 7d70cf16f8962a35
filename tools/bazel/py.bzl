"""Python tests with the packages of .deps/venv, which Bazel's own py_test does not know."""

def latentd_py_test(name, main, srcs = [], data = [], args = [], size = "small", tags = [], **kwargs):
    """main is run with the project's Python; srcs are the modules it imports, data the binaries it starts."""
    native.sh_test(
        name = name,
        size = size,
        srcs = ["//tools/bazel:run_python.sh"],
        args = ["$(location %s)" % main] + args,
        data = [main] + srcs + data,
        tags = tags + ["local"],
        **kwargs
    )
