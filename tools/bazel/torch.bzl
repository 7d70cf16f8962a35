"""The Python wheels in .deps/ (torch, CUDA, NCCL) as C++ libraries."""

# torch ships headers of libraries that we take from the distribution; its copies would shadow them.
_SHADOWING = ["fmt", "pybind11", "google"]

def _impl(repo):
    root = repo.path(Label("//:WORKSPACE")).dirname
    site_link = repo.path(str(root) + "/" + repo.attr.deps_dir + "/site")
    if not site_link.exists:
        fail("torch is not installed in .deps/: run tools/setup")

    # The real folder, so that clones that share one .deps share the build cache too.
    site = repo.path(str(site_link.realpath))
    for entry in repo.path(str(site) + "/torch/include").readdir():
        if entry.basename not in _SHADOWING:
            repo.symlink(entry, "include/" + entry.basename)
    repo.symlink(str(site) + "/nvidia", "nvidia")
    repo.file(
        "BUILD.bazel",
        repo.read(Label("//tools/bazel:pip.BUILD")).replace("{site}", str(site)),
    )

torch_repository = repository_rule(
    implementation = _impl,
    attrs = {"deps_dir": attr.string(mandatory = True)},
    local = True,
)
