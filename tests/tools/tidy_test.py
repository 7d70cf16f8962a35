"""Each house rule fires on a tree that breaks it, and on nothing else."""
import os
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "tidy"))
import compile_checks
import cpp
import text_checks


class TidyTest(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self.root = pathlib.Path(self._folder.name)
        self.enterContext(unittest.mock.patch.dict(os.environ, XDG_CACHE_HOME=str(self.root / ".cache")))

    def tree(self, files):
        for name, text in files.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)
        return text_checks.Tree(self.root, sorted(pathlib.Path(name) for name in files))

    def finds(self, check, files, *words):
        findings = check(self.tree(files))
        for word in words:
            self.assertTrue(any(word in finding for finding in findings), f"{word!r} not in {findings}")
        if not words:
            self.assertEqual(findings, [])

    def test_functions_are_found_with_their_lines(self):
        code = 'namespace a {\nclass B {\n  int c() { return 1; }\n};\nvoid B::d(int x) {\n  if (x) {\n    auto l = [] { };\n  }\n}\n}\n'
        self.assertEqual([(first, last) for first, last, _ in cpp.functions(code)], [(3, 3), (5, 9)])

    def test_braces_in_literals_and_comments_do_not_count(self):
        code = 'void f() {\n  g("{", \'{\'); // {\n  /* { */ h(R"x({{)x");\n}\nvoid k() {\n}\n'
        self.assertEqual([(first, last) for first, last, _ in cpp.functions(code)], [(1, 4), (5, 6)])

    def test_long_functions_files_and_lines(self):
        self.finds(text_checks.lengths, {"channel/a.cc": "void f() {\n" + "  g();\n" * 70 + "}\n"}, "a function of 72 lines")
        self.finds(text_checks.lengths, {"channel/a.cc": "void f() {\n" + "  g();\n" * 68 + "}\n"})
        self.finds(text_checks.lengths, {"channel/a.cc": "\n" * 501}, "501 lines")
        self.finds(text_checks.lengths, {"tests/a.cc": "\n" * 501})
        self.finds(text_checks.lengths, {"channel/a.cc": "x" * 121}, "121 columns")

    def test_layering(self):
        self.finds(text_checks.layering, {"channel/a.cc": '#include "mesh/b.h"\n'}, "channel must not depend on mesh/b.h")
        self.finds(text_checks.layering, {"runtime/supervisor/a.cc": '#include "channel/b.h"\n'}, "must not depend on channel/b.h")
        self.finds(text_checks.layering, {"runtime/supervisor/a.cc": "#include <ATen/core/Tensor.h>\n"}, "must not see torch")
        self.finds(text_checks.layering, {"runtime/worker/a.cc": '#include "channel/b.h"\n#include <ATen/core/Tensor.h>\n'})

    def test_banned_calls(self):
        self.finds(text_checks.banned, {"channel/a.cc": "std::this_thread::sleep_for(x);\n"}, "no synchronisation")
        self.finds(text_checks.banned, {"channel/a.cc": "// sleep_for\n"})
        self.finds(text_checks.banned, {"channel/a.cc": 'const char* h = getenv("HOME");\n'}, "only the mains")
        self.finds(text_checks.banned, {"tools/a.cc": 'const char* h = getenv("HOME");\n'})
        self.finds(text_checks.banned, {"stages/a.cc": "#include <torch/torch.h>\n"}, "umbrella")
        self.finds(text_checks.banned, {"runtime/api/a.cc": "std::mutex m;\n"}, "latentd::Mutex")
        self.finds(text_checks.banned, {"runtime/api/a.cc": "if (fork() == 0) {}\n"}, "child_process")

    def test_unfinished_words_and_machine_paths(self):
        self.finds(text_checks.unfinished, {"channel/a.cc": "// TO" + "DO later\n"}, "finish it")
        self.finds(text_checks.unfinished, {"README.md": "see /" + "work/x\n"}, "a path of one machine")

    def test_files_without_a_target(self):
        build = 'latentd_cc_library(srcs = ["a.cc"])\n'
        self.finds(text_checks.owned, {"channel/BUILD.bazel": build, "channel/a.cc": "", "channel/b.cc": ""}, "channel/b.cc:1: no target")
        self.finds(text_checks.owned, {"channel/BUILD.bazel": build, "channel/a.cc": ""})

    def test_headers(self):
        self.finds(text_checks.headers, {"channel/a.h": ""}, "no #pragma once")
        self.finds(text_checks.headers, {"channel/a.h": "#pragma once\n", "channel/a.cc": '#include <x>\n#include "channel/a.h"\n'},
                   'include "channel/a.h" first')

    def test_invariants_need_a_test(self):
        protocol = {"channel/PROTOCOL.md": "**C1** holds. **C2** too.\n"}
        self.finds(text_checks.invariants, {**protocol, "tests/a.cc": 'TEST_CASE("x [C1]")\n'}, "invariant C2")

    def test_hidden_cases_are_run_by_somebody(self):
        case = 'TEST_CASE("x: y, for minutes", "[.][x]") {}\n'
        build = 'latentd_cc_test(name = "a", srcs = ["a.cc"])\nlatentd_cc_test(name = "b", srcs = ["b.cc"], tags = _TAGS + ["long"])\n'
        self.finds(text_checks.hidden_cases, {"tests/BUILD.bazel": build, "tests/a.cc": case, "tests/b.cc": case}, "tests/a.cc:1: a hidden case")
        self.finds(text_checks.hidden_cases, {"tests/BUILD.bazel": build, "tests/a.cc": case.replace("[x]", "[child]"), "tests/b.cc": case})

    def test_formatting(self):
        self.finds(compile_checks.formatting, {".clang-format": "BasedOnStyle: Google\n", "a.cc": "int  a ;\n", "b.cc": "int b;\n"}, "a.cc:1: not formatted")

    def test_a_header_that_does_not_compile_alone(self):
        tree = self.tree({"a.h": "#pragma once\nstd::string f();\n", "b.h": "#pragma once\n#include <string>\nstd::string f();\n"})
        findings = compile_checks.headers_compile_alone(tree, self.root)
        self.assertEqual([finding.split(":")[0] for finding in findings], ["a.h"])

    def test_what_compiled_is_compiled_again_once_something_that_it_includes_changed(self):
        files = {"a.h": '#pragma once\n#include "b.h"\n', "b.h": "#pragma once\nint f();\n"}
        self.assertEqual(compile_checks.headers_compile_alone(self.tree(files), self.root), [])
        files["b.h"] = "#pragma once\nstd::string f();\n"
        findings = compile_checks.headers_compile_alone(self.tree(files), self.root)
        self.assertEqual([finding.split(":")[0] for finding in findings], ["a.h", "b.h"])

    def test_thread_safety(self):
        mutex = (ROOT / "runtime/base/mutex.h").read_text()
        source = '#include "runtime/base/mutex.h"\nstruct S {\n  latentd::Mutex m;\n  int x GUARDED_BY(m);\n  int f() { return x; }\n};\n'
        tree = self.tree({"runtime/base/mutex.h": mutex, "channel/a.cc": source})
        findings = compile_checks.thread_safety(tree, self.root)
        self.assertTrue(any("requires holding mutex" in finding for finding in findings), findings)

    def test_clang_tidy_knows_the_names(self):
        rules = (ROOT / ".clang-tidy").read_text()
        good = "namespace latentd {\nconstexpr int kLimit = 3;\nclass Cup {\n public:\n  int contents() const { return held_ + kLimit; }\n private:\n  int held_ = 0;\n};\n}\n"
        for old, new in (("", ""), ("contents", "Get_Contents"), ("Cup", "cup"), ("held_", "held"), ("kLimit", "limit")):
            files = {".clang-tidy": rules, "channel/a.cc": good.replace(old, new) if old else good}
            findings = compile_checks.clang_tidy(self.tree(files), self.root, [pathlib.Path("channel/a.cc")])
            self.assertEqual(bool(findings), bool(old), findings)
            self.assertTrue(all(f"'{new}'" in finding for finding in findings), findings)


if __name__ == "__main__":
    unittest.main()
