"""Protocol buffers and gRPC by the distribution's protoc: Bazel's own proto rules would fetch a compiler."""

def grpc_library(name, srcs, deps = [], proto_deps = [], visibility = None):
    """C++ messages and services of srcs.

    Args:
      name: the library.
      srcs: .proto files of this package.
      deps: other grpc_library targets whose messages these use.
      proto_deps: the .proto files of those.
      visibility: as usual.
    """
    outs = []
    for src in srcs:
        stem = src[:-len(".proto")]
        outs += [stem + ext for ext in [".pb.h", ".pb.cc", ".grpc.pb.h", ".grpc.pb.cc"]]
    native.genrule(
        name = name + "_gen",
        srcs = srcs + proto_deps,
        outs = outs,
        cmd = "protoc -I. --cpp_out=$(GENDIR) --grpc_out=$(GENDIR)" +
              " --plugin=protoc-gen-grpc=$$(command -v grpc_cpp_plugin) " +
              " ".join(["$(location %s)" % s for s in srcs]),
    )
    native.cc_library(
        name = name,
        srcs = [o for o in outs if o.endswith(".cc")],
        hdrs = [o for o in outs if o.endswith(".h")],
        copts = ["-w"],
        deps = deps + ["@system//:grpc"],
        visibility = visibility,
    )
