"""Libraries of the distribution (apt) as targets of @system."""

# GCC of Debian 12, with which CI builds.
_NEWEST_WITHOUT_WARNINGS = 12

def _impl(repo):
    triplet = repo.execute(["gcc", "-print-multiarch"]).stdout.strip()
    lib_dir = repo.path("/usr/lib/" + triplet)
    absl = [
        "-l" + f.basename[len("lib"):-len(".a")]
        for f in lib_dir.readdir()
        if f.basename.startswith("libabsl_") and f.basename.endswith(".a")
    ]
    if not absl or not repo.path(str(lib_dir) + "/libgrpc++.a").exists:
        fail("libgrpc++-dev is not installed: run tools/setup")
    flags = "\n".join(["        \"%s\"," % f for f in sorted(absl)])

    # Where Debian and Ubuntu differ: the name of the static c-ares; Catch2 is headers alone, or has a library too.
    places = {
        "        \"{absl}\",": flags,
        "{cares}": "cares" if repo.path(str(lib_dir) + "/libcares.a").exists else "cares_static",
        "{catch2}": "\"-lCatch2\"" if repo.path("/usr/lib/libCatch2.a").exists else "",
    }
    build = repo.read(Label("//tools/bazel:system.BUILD"))
    for place, text in places.items():
        build = build.replace(place, text)
    repo.file("BUILD.bazel", build)

    # Newer compilers warn of more, and falsely inside headers of the distribution: there a warning stays one (GCC 13:
    # array-bounds in fmt, overloaded-virtual in gRPC).
    version = int(repo.execute(["gcc", "-dumpversion"]).stdout.strip().split(".")[0])
    repo.file("compiler.bzl", "WARNINGS_ARE_ERRORS = %s\n" % (version <= _NEWEST_WITHOUT_WARNINGS))

system_repository = repository_rule(implementation = _impl, local = True)
