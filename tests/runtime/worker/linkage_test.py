"""latent-worker holds gRPC, protobuf and abseil inside itself: a library loaded later with copies of its own (NIXL,
sentencepiece) must neither take these symbols nor give its own."""
import pathlib
import re
import subprocess
import unittest

WORKER = pathlib.Path("tools/latent-worker")
HIDDEN_LIBRARIES = re.compile(r"lib(grpc|gpr|protobuf|absl|upb|re2|cares|address_sorting)")
HIDDEN_SYMBOLS = re.compile(r"\b(grpc::|grpc_core::|grpc_\w+|gpr_\w+|google::protobuf::|absl::|upb_\w+|re2::|ares_\w+)")


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


class Linkage(unittest.TestCase):
    def test_needs_none_of_them(self):
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-d", WORKER))
        self.assertIn("libtorch_cpu.so", needed)
        self.assertEqual([name for name in needed if HIDDEN_LIBRARIES.match(name)], [])

    def test_loads_no_copy_of_them_through_others(self):
        loaded = [line.split()[0] for line in output("ldd", WORKER).splitlines()]
        self.assertGreater(len(loaded), 10)
        self.assertEqual([name for name in loaded if HIDDEN_LIBRARIES.match(name)], [])

    def test_exports_none_of_their_symbols(self):
        # A symbol in the dynamic table binds other libraries' calls, and a unique one (STB_GNU_UNIQUE) even those of
        # libraries opened RTLD_LOCAL.
        defined = output("nm", "--dynamic", "--defined-only", "--demangle", WORKER).splitlines()
        self.assertGreater(len(defined), 0)
        found = [line for line in defined if HIDDEN_SYMBOLS.search(line.split(" ", 2)[2])]
        # Templates of ours instantiated over their types keep their own names.
        self.assertEqual([line for line in found if "latentd::" not in line], [])

    def test_contains_them(self):
        # The same names, in the static table: the checks above look for what is really there.
        symbols = output("nm", "--defined-only", "--demangle", WORKER)
        for name in ("grpc::Channel", "google::protobuf::Message", "absl::"):
            self.assertIn(name, symbols)


if __name__ == "__main__":
    unittest.main()
