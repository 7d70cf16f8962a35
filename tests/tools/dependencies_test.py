"""What the programs load: the supervisor and the client must not load torch or CUDA, whatever their libraries do."""
import pathlib
import re
import subprocess
import unittest

FORBIDDEN = re.compile(r"torch|c10|cuda|nccl|cudnn|cublas|libav|libsw", re.IGNORECASE)


def needed(program):
    """Names of all shared libraries of the program, those of its libraries included."""
    path = next(p for p in (pathlib.Path("tools") / program, pathlib.Path("bazel-bin/tools") / program) if p.exists())
    listing = subprocess.run(["ldd", str(path)], check=True, capture_output=True, text=True, timeout=30).stdout
    return [line.split()[0] for line in listing.splitlines() if line.strip()]


class DependenciesTest(unittest.TestCase):
    def test_supervisor_and_client_load_no_torch_cuda_or_codecs(self):
        for program in ("latentd", "latentctl"):
            libraries = needed(program)
            self.assertTrue(any("libstdc++" in name for name in libraries), libraries)
            self.assertEqual([name for name in libraries if FORBIDDEN.search(name)], [], program)

    def test_the_pattern_finds_what_it_is_for(self):
        self.assertTrue(any(FORBIDDEN.search(name) for name in needed("latent-encoder")))


if __name__ == "__main__":
    unittest.main()
