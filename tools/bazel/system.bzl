"""Libraries of the distribution (apt) as targets of @system."""

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
    repo.file("BUILD.bazel", repo.read(Label("//tools/bazel:system.BUILD")).replace("        \"{absl}\",", flags))

system_repository = repository_rule(implementation = _impl, local = True)
