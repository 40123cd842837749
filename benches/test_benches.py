"""Unit tests of the scripts in this folder, without benchmarks: python -m unittest discover
benches."""
import argparse
import importlib.machinery
import importlib.util
import pathlib
import random
import sys
import tempfile
import threading
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import peer
import puna
import results
import rows
import servers
import synth
from rows import File, Row, Test


def script(name):
    """Loads a script of this folder as a module."""
    loader = importlib.machinery.SourceFileLoader(name, str(pathlib.Path(__file__).resolve().parent / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    sys.dont_write_bytecode = True
    loader.exec_module(module)
    return module


instructions = script("instructions")
kills = script("kills")
quality = script("quality")
quantize = script("quantize")
speculation = script("speculation")


class Kills(unittest.TestCase):
    def mirror(self, lives):
        mirror = object.__new__(kills.Mirror)
        mirror.random, mirror.wrong, mirror.lives = random.Random(1), [], lives
        return mirror

    def test_a_refusal_of_a_running_mirror_ends_the_run(self):
        mirror = self.mirror(lives=1)

        def pusher(chance):
            raise AssertionError("500 it has no more room")

        mirror.client(threading.Event(), pusher)
        self.assertEqual(mirror.wrong, ["pusher: AssertionError('500 it has no more room')"])

    def test_an_error_caused_by_a_kill_does_not_end_the_run(self):
        mirror, over = self.mirror(lives=1), threading.Event()
        failures = [ConnectionResetError(), AssertionError("416 of an upload of its last life")]

        def pusher(chance):
            error = failures.pop(0)
            if not failures:
                mirror.lives += 1
                over.set()
            raise error

        mirror.client(over, pusher)
        self.assertEqual((mirror.wrong, failures), ([], []))


class Speculation(unittest.TestCase):
    def test_a_row_shows_ratio_acceptance_and_whether_an_answer_changed(self):
        result = {"plain": 100.0, "guessed": 150.0, "tokens": 200, "drafted": 90, "accepted": 60, "same": True}
        told = speculation.table([("M", "json", "greedy", result)]).splitlines()[-1]
        self.assertEqual(told, "| M | JSON | greedy | 100 | 150 | 1.50 | 60 of 90 | yes |")
        changed = speculation.table([("M", "free", "seeded", {**result, "drafted": 0, "same": False})]).splitlines()[-1]
        self.assertTrue(changed.endswith("| none tried | **no** |"), changed)

    def test_every_kind_of_text_has_a_prompt_file(self):
        for kind in speculation.KINDS:
            self.assertTrue((pathlib.Path(speculation.__file__).parent / "prompts" / f"{kind}.txt").read_text().strip())


class Rows(unittest.TestCase):
    def test_every_planned_row_exists_exactly_once(self):
        all_ = rows.rows(["portable", "avx2", "avx512", "avx512vnni", "amx"])
        self.assertEqual({row.group for row in all_}, set(rows.GROUPS))
        self.assertEqual(len({row.id for row in all_}), len(all_))
        decode = [str(row.file) for row in all_ if row.group == "decode" and row.file.shape == rows.SMALL]
        self.assertEqual(decode, [f"llama-3.2-1b {kind}" for kind in ("Q4_K_M", "Q4_0", "Q8_0", "Q6_K", "MXFP4")])
        against = {(row.level, row.build): (row.ratio, row.share) for row in all_ if row.group == "prefill"}
        self.assertEqual(against, {("amx", "avx512"): (8, 0.45), ("amx", "amx"): (1.5, 0.45), ("avx512vnni", "avx512"): (2.5, 0.55), ("avx2", "avx2"): (1.5, 0.55)})

    def test_levels_that_a_machine_lacks_have_no_rows(self):
        levels = {row.level for row in rows.rows(["portable", "avx2"], quick=True) if row.group == "prefill"}
        self.assertEqual(levels, {"avx2"})
        self.assertEqual({row.level for row in rows.rows(["portable", "avx2", "avxvnni"]) if row.group == "prefill"}, {"avx2", "avxvnni"})
        self.assertEqual({row.level for row in rows.rows(["portable", "neon"]) if row.group == "prefill"}, {None})

    def test_quick_rows_use_the_small_shape(self):
        shapes = {row.file.shape for row in rows.rows(["portable"], quick=True) if not row.file.real}
        self.assertEqual(shapes, {rows.SMALL, "qwen3-30b-a3b"})

    def test_one_run_measures_all_rows_of_one_depth(self):
        jobs = rows.jobs([row for row in rows.rows(["portable"]) if row.group in ("batch", "depth", "moe")])
        self.assertEqual([(job.how, job.depth, len(job.rows)) for job in jobs], [("bench", 4096, 1), ("bench", 16384, 1), ("batch", 16, 5), ("bench", 0, 2)])
        self.assertTrue(all(job.cost > 0 for job in jobs))


class Results(unittest.TestCase):
    row = Row("decode", File("llama-3.2-1b", "Q4_0"), Test(generate=64), ratio=1.8, share=0.85)

    def test_medians_are_compared_with_the_best_rival_and_the_limit(self):
        found = results.evaluate(self.row, [40, 20, 36], {"avx512": [10, 12, 20], "amx": [15]}, [0.9, 0.8, 0.86])
        self.assertEqual((found["puna"], found["peer"], found["peer_build"], found["ratio"], found["share"]), (36, 15, "amx", 2.4, 0.86))
        self.assertIs(found["met"], True)
        self.assertIs(results.evaluate(self.row, [36], {"a": [30]}, [0.9])["met"], False)
        self.assertIs(results.evaluate(self.row, [36], {}, [0.9])["met"], None)
        self.assertIs(results.evaluate(self.row, [36], {}, [0.2])["met"], False)
        self.assertIs(results.evaluate(Row("real", self.row.file, Test(generate=1)), [1], {"a": [2]}, [0.1])["met"], None)

    def test_less_time_and_less_memory_are_better(self):
        start = results.evaluate(Row("start", self.row.file, how="start", ratio=2.0), [0.2], {"a": [0.6], "b": [0.5]}, [])
        self.assertEqual((start["peer"], start["ratio"], start["met"]), (0.5, 2.5, True))
        memory = Row("memory", self.row.file, how="memory", share=200e6, limit="bytes")
        self.assertIs(results.evaluate(memory, [150e6], {}, [])["met"], True)
        self.assertIs(results.evaluate(memory, [250e6], {}, [])["met"], False)

    def test_a_table_row_shows_results_ratios_and_targets(self):
        found = results.evaluate(self.row, [36, 40], {"avx512": [19]}, [0.8])
        self.assertEqual(results.line(self.row, found), "| decode | llama-3.2-1b Q4_0 | 38.0 (36.0–40.0) | 19.0 | 2.00× | ≥ 1.8× | 80 % of reading | ≥ 85 % | **no** |")
        self.assertIn("skipped: no room", results.line(self.row, {"skipped": "no room"}))
        memory = Row("memory", self.row.file, how="memory", share=200e6, limit="bytes")
        self.assertIn("| 150 |  |  |  |  | ≤ 200 MB | yes |", results.line(memory, results.evaluate(memory, [150e6], {}, [])))

    def test_the_table_replaces_the_text_between_its_markers(self):
        machine = {"cpu": "c", "threads": 2, "cores": 2, "memory_gb": 8, "os": "o", "date": "d", "commit": "abc", "peer": "p", "limits": {"read_gbs": [20.0, 30.0], "levels": {"avx2": {"int8_gmacs": [1.0], "bf16_gmacs": [2.0]}}}}
        found = {self.row.id: results.evaluate(self.row, [36], {"a": [30]}, [0.9]) | {"commit": "old", "date": "then"}}
        section = results.table([self.row], found, machine, "x")
        self.assertIn("reading 20.0–30.0 GB/s; `avx2` 1.00 G", section)
        self.assertIn("**no** (old, then) |", section)
        self.assertIn("Targets met: 0 of 1.", section)
        unprobed = machine | {"limits": {"read_gbs": [], "levels": {}}}
        self.assertNotIn("Limits", results.table([self.row], found, unprobed, "x"))
        once = results.write_between("# A\n\ntext\n", section)
        again = results.write_between(once + "\n## After\n", "new\\1\n")
        self.assertTrue(once.startswith(f"# A\n\ntext\n\n{results.BEGIN}\n## Puna"))
        self.assertEqual(once.count("| work |"), 1)
        self.assertIn("new\\1\n" + results.END + "\n\n## After", again)
        self.assertNotIn("36.0", again)

    def test_the_csv_file_has_a_line_for_each_row(self):
        machine = {"cpu": "c", "threads": 2, "cores": 2, "memory_gb": 8, "os": "o", "date": "d", "commit": "abc", "peer": "p", "limits": {}}
        found = {self.row.id: results.evaluate(self.row, [36], {"a": [30]}, [0.9]) | {"commit": "old", "date": "then"}}
        lines = results.csv_text([self.row], found, machine, "x").splitlines()
        self.assertEqual(lines[-1], "decode,decode,llama-3.2-1b Q4_0,36.0,30.0,1.20×,≥ 1.8×,90 % of reading,≥ 85 %,no,old,then")
        self.assertEqual(lines[-3], "# Targets met: 0 of 1.")
        skipped = results.csv_text([self.row], {self.row.id: {"skipped": "no room"}}, machine, "x")
        self.assertIn("decode,decode,llama-3.2-1b Q4_0,skipped: no room,,,≥ 1.8×,,≥ 85 %,,abc,d", skipped)

    def test_a_record_folder_is_named_after_the_machine(self):
        self.assertEqual(puna.record_folder("Intel(R) Xeon(R) Gold 6430 @ 2.10GHz", 4).name, "intel-xeon-gold-6430-4-cpus")
        self.assertEqual(puna.record_folder("AMD EPYC", 2).name, "amd-epyc-2-cpus")

    def test_results_of_another_machine_are_not_loaded(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "a" / "r.json"
            results.store(path, {"cpu": "a"}, {"x": {"puna": 1}})
            self.assertEqual(results.load(path, {"cpu": "a"}), {"x": {"puna": 1}})
            self.assertEqual(results.load(path, {"cpu": "b"}), {})
            path.write_text("{")
            self.assertEqual(results.load(path, {"cpu": "a"}), {})


class Peer(unittest.TestCase):
    def test_builds_of_llama_cpp_follow_the_processor_features(self):
        flags = peer.cpu_flags("processor: 0\nflags\t\t: fpu avx2 avx512f avx512_vnni amx_int8 amx_tile\n")
        found = peer.builds(flags, "x86_64")
        self.assertEqual(list(found), ["avx2", "avx512", "amx"])
        self.assertIn("-DGGML_AVX512_VNNI=ON", found["avx512"])
        self.assertEqual(list(peer.builds({"avx2", "avx_vnni"}, "x86_64")), ["avx2", "avxvnni"])
        self.assertNotIn("-DGGML_AVX512_BF16=ON", found["amx"])
        self.assertIn("-DGGML_AMX_INT8=ON", found["amx"])
        self.assertEqual(list(peer.builds(set(), "aarch64")), ["native"])

    def test_outputs_of_llama_bench_are_parsed(self):
        text = 'loading\n[{"n_prompt":512,"n_gen":0,"n_depth":0,"flash_attn":1,"samples_ts":[1.5,2.5]},{"n_prompt":0,"n_gen":32,"n_depth":64,"flash_attn":false,"avg_ts":3.0}]'
        self.assertEqual(peer.parse_bench(text), {(512, 0, 0, "1"): [1.5, 2.5], (0, 32, 64, "0"): [3.0]})
        self.assertRaises(peer.Failed, peer.parse_bench, "x")
        self.assertEqual(peer.parse_batched('x\n{"pl":4,"speed_tg":2.0}\n{"pl":8,"speed_tg":3.0}\n'), {4: [2.0], 8: [3.0]})

    def test_the_error_of_a_failed_program_has_its_status_and_message(self):
        with self.assertRaisesRegex(peer.Failed, "status 3: no"):
            peer.run(sys.executable, ["-c", "import sys; print('no', file=sys.stderr); sys.exit(3)"], 30)
        with self.assertRaisesRegex(peer.Failed, "signal 11"):
            peer.run(sys.executable, ["-c", "import os; os.kill(os.getpid(), 11)"], 30)
        self.assertRaises(peer.Failed, peer.run, "/nowhere/x", [], 1)


class Instructions(unittest.TestCase):
    def test_a_record_round_trips(self):
        counts = {"avx2 linear Q4_K stream": 11385, "portable exp_sum": 5}
        self.assertEqual(instructions.parse(instructions.text("rustc 1.95.0 (x)", counts)), ("rustc 1.95.0 (x)", counts))

    def test_more_instructions_than_recorded_fail_and_fewer_are_reported(self):
        recorded = {"avx2 a": 1000, "avx2 b": 1000, "avx2 c": 1000, "avx2 gone": 1, "wide d": 1}
        complaints, notes = instructions.compare(recorded, {"avx2 a": 1031, "avx2 b": 1029, "avx2 c": 960, "avx2 new": 2})
        self.assertEqual([line.split(":")[0] for line in complaints], ["avx2 a", "avx2 new", "avx2 gone"])
        self.assertIn("(+3.1%)", complaints[0])
        self.assertEqual([line.split(":")[0] for line in notes], ["avx2 c"])

    def test_vector_levels_need_far_fewer_instructions_than_portable(self):
        counts = {"portable linear F16 stream": 1000, "avx2 linear F16 stream": 350, "portable linear Q8_0 stream": 1000, "avx2 linear Q8_0 stream": 100, "portable add": 1, "avx2 add": 1}
        self.assertEqual([line.split(":")[0] for line in instructions.ratios(counts)], ["avx2 linear F16 stream"])

    def test_the_committed_instruction_record_is_complete(self):
        compiler, counts = instructions.parse(instructions.RECORD.read_text())
        self.assertTrue(compiler.startswith("rustc ") and len(counts) > 60)
        self.assertEqual(instructions.ratios(counts), [])

    def test_an_instruction_count_is_parsed_from_a_dump(self):
        self.assertEqual(instructions.total("version: 1\nevents: Ir\nsummary: 123\n\nfn=(1) x\ntotals: 123\n"), 123)
        self.assertEqual(instructions.total("nothing"), 0)


class Quality(unittest.TestCase):
    def test_the_output_of_llama_perplexity_is_parsed(self):
        text = "====== KL divergence statistics ======\nMean    KLD:   0.003950 ±   0.000074\nMaximum KLD:   0.1\n99.0%   KLD:   0.013820\nMedian  KLD:   0.003\nSame top p: 95.400 ± 0.4 %\n"
        self.assertEqual(quality.parse_peer(text), {"mean": 0.00395, "stderr": 7.4e-05, "p99": 0.01382, "same": 95.4})
        self.assertRaises(quality.Failed, quality.parse_peer, "no")

    def test_divergence_matches_its_definition(self):
        half, quarter = [0.0, 0.0], [quality.math.log(3.0), 0.0]
        want = 0.5 * quality.math.log(0.5 / 0.75) + 0.5 * quality.math.log(0.5 / 0.25)
        self.assertAlmostEqual(quality.divergence(half, quarter), want)
        self.assertEqual(quality.divergence([1.0, 2.0], [1.0, 2.0]), 0.0)

    def test_rows_show_whether_the_error_is_at_most_that_of_llama_cpp(self):
        told = {"kl_mean": 0.004, "kl_stderr": 0.00001, "kl_p99": 0.01, "top1_agreement": 0.95}
        theirs = {"mean": 0.0039, "stderr": 0.00002, "p99": 0.02, "same": 96.0}
        row = quality.compared("Q4_0", {"avx2": told}, theirs, extra="0.1")[0]
        self.assertEqual(row, ["Q4_0", "`avx2`", "0.00400 ± 0.00001", "0.0100", "95.0 %", "0.00390 ± 0.00002", "0.0200", "96.0 %", "**no**", "0.1"])
        self.assertEqual(quality.verdict(0.0039, 0.0039), "yes")
        self.assertEqual(quality.verdict(0.004, 0.0039, (0.00003, 0.00004)), "yes")
        self.assertEqual(quality.verdict(0.00001, 0.0), "yes")
        self.assertEqual(quality.compared("Q4_0", {"avx2": told}, None)[0][-1], "")


class Quantize(unittest.TestCase):
    def test_rounds_are_compared_pairwise(self):
        one = lambda wall, cpu: {"wall": wall, "cpu": cpu, "memory": 1.0}
        ours, theirs = [one(1, 2), one(30, 2), one(1, 1)], [one(2, 4), one(60, 1), one(1, 4)]
        self.assertEqual(quantize.judged(ours, theirs, 1.0), {"wall": 0.5, "cpu": 0.5, "good": True})
        self.assertFalse(quantize.judged(ours, theirs, 0.4)["good"])
        self.assertEqual(quantize.medians(ours), one(1, 2))

    def test_a_missing_llama_cpp_is_reported_and_not_compared(self):
        options = argparse.Namespace(llama_quantize="no-such-program", python=sys.executable)
        self.assertEqual(quantize.peer(options), (None, "no-such-program is no program"))
        options.llama_quantize, options.python = None, "false"
        self.assertIn("pip install llama-cpp-python", quantize.peer(options)[1])

    def test_the_llama_cpp_library_gets_type_and_thread_count(self):
        with tempfile.TemporaryDirectory() as folder:
            fake = pathlib.Path(folder, "llama_cpp.py")
            fake.write_text(
                "import ctypes\n__version__ = '0'\nLLAMA_FTYPE_MOSTLY_Q4_K_M = 15\n"
                "class Params(ctypes.Structure):\n    _fields_ = [('nthread', ctypes.c_int32), ('ftype', ctypes.c_int)]\n"
                "llama_model_quantize_default_params = Params\n"
                "def llama_model_quantize(source, target, params):\n"
                "    open(target, 'w').write(f'{source.decode()} {params._obj.ftype} {params._obj.nthread}')\n    return 0\n"
            )
            options = argparse.Namespace(llama_quantize=None, python=sys.executable, source="source.gguf", threads=3)
            target = pathlib.Path(folder, "target")
            with mock.patch.dict("os.environ", PYTHONPATH=folder):
                run, why = quantize.peer(options)
                self.assertIsNone(why)
                figures = quantize.measured(run("Q4_K_M", target))
            self.assertEqual(target.read_text(), "source.gguf 15 3")
            self.assertGreater(figures["memory"], 0)
            with self.assertRaisesRegex(quantize.Failed, "ended with status 3: ?alas"):
                quantize.measured([sys.executable, "-c", "import sys; print('alas'); sys.exit(3)"])


class Others(unittest.TestCase):
    def test_synthetic_sizes_match_published_files(self):
        self.assertAlmostEqual(synth.size("llama-3.2-1b", "Q4_K_M") / 1e9, 0.80, places=2)
        self.assertAlmostEqual(synth.size("llama-3.1-8b", "Q4_K_M") / 1e9, 4.91, places=2)
        self.assertAlmostEqual(synth.size("qwen3-30b-a3b", "Q4_K_M") / 1e9, 18.5, places=0)

    def test_every_type_of_the_table_can_be_synthesized(self):
        kinds = {row.file.kind for row in rows.rows(["avx2"]) if not row.file.real}
        self.assertLessEqual(kinds, set(synth.TYPES))

    def test_fair_shares_follow_the_cores_and_texts_are_reproducible(self):
        self.assertEqual(puna.fair_share(2, 2, 2), 0.5)
        self.assertEqual(puna.fair_share(2, 2, 8), 1.0)
        texts = servers.texts()
        lengths = [len(t.split()) for t in texts]
        self.assertEqual((len(texts), min(lengths), max(lengths)), (64, 4, 180))
        self.assertEqual(texts, servers.texts())
        self.assertNotEqual(lengths, sorted(lengths))


if __name__ == "__main__":
    unittest.main()
