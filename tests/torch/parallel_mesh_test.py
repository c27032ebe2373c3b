"""SMP's surface for PyTorch models: parameters, ranks and groups, and messages of objects."""
import importlib.util
import json
import logging
import os
import pathlib
import re
import subprocess
import sys
import unittest
import unittest.mock

if importlib.util.find_spec("shoal._native") is None:
    print("built without pybind11 for this Python")
    sys.exit(77)

import torch
import torch.distributed as dist

import ranks
from shoal.torch import parallel as smp
from shoal.torch.parallel import trainer

# (rdp, pp, tp) of ranks 0 to 7 with 2 of each, and the members of rank 3's groups.
TABLES = {
    "cluster": ("000 001 010 011 100 101 110 111",
                {"tp": [2, 3], "pp": [1, 3], "rdp": [3, 7], "mp": [0, 1, 2, 3], "dp": [2, 3, 6, 7]}),
    "spread": ("000 100 010 110 001 101 011 111",
               {"tp": [3, 7], "pp": [1, 3], "rdp": [2, 3], "mp": [1, 3, 5, 7], "dp": [2, 3, 6, 7]}),
    "PTD": ("000 100 001 101 010 110 011 111",
            {"tp": [1, 3], "pp": [3, 7], "rdp": [2, 3], "mp": [1, 3, 5, 7], "dp": [0, 1, 2, 3]}),
}
AXES = {"tp": smp.CommGroup.TP_GROUP, "pp": smp.CommGroup.PP_GROUP, "rdp": smp.CommGroup.RDP_GROUP,
        "mp": smp.CommGroup.MP_GROUP, "dp": smp.CommGroup.DP_GROUP, "world": smp.CommGroup.WORLD}


def on_a_mesh(rank, size, placement):
    """The results of SMP's functions on this rank, after messages on every group."""
    smp.init({"partitions": 2, "tensor_parallel_degree": 2, "ddp": True, "placement_strategy": placement})
    smp.init()  # as transformers does after a script
    mesh = smp.state.mesh
    said = {}
    for axis, group in AXES.items():
        members = getattr(smp, f"get_{axis}_group")()
        assert members == mesh.ranks(axis) and members[mesh.rank(axis)] == rank == smp.rank()
        if axis != "world":
            assert (getattr(smp, f"{axis}_rank")(), getattr(smp, f"{axis}_size")()) == (
                mesh.rank(axis), mesh.size(axis))
        process_group = getattr(smp, f"get_{axis}_process_group")()
        assert process_group is mesh.group(axis) and dist.get_process_group_ranks(process_group) == members
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor, group=process_group)
        assert tensor.item() == sum(members)
        shapes = [value.shape for value in smp.allgather(torch.ones(rank + 1), group)]
        assert shapes == [(member + 1,) for member in members]
        rank_type = smp.RankType(group.value)
        if mesh.rank(axis) == 0:
            smp.broadcast({"from": rank, "tensor": torch.arange(4)}, group)
        else:
            received = smp.recv_from(0, rank_type)
            assert received["from"] == members[0] and received["tensor"].tolist() == [0, 1, 2, 3]
        last = len(members) - 1
        if mesh.rank(axis) == last:
            smp.send(torch.arange(10)[3:5], 0, rank_type)
        elif mesh.rank(axis) == 0:
            assert smp.recv_from(last, rank_type).tolist() == [3, 4]
        smp.barrier(group)
        said[axis] = members
    assert smp.local_size() == size and smp.local_rank() == rank
    assert mesh.batch_axis == "dp" and mesh.batches == 4
    return "{}{}{}".format(*mesh.place), said


def with_one_partition(rank, size):
    smp.init()
    assert smp.get_mp_group() == [rank] and smp.get_dp_group() == smp.get_rdp_group() == list(range(size))
    assert smp.get_dp_process_group() is dist.group.WORLD
    assert smp.allgather(rank, smp.CommGroup.PP_GROUP) == [rank]
    try:
        smp.init({"microbatches": 2})
    except ValueError as problem:
        return str(problem)


def with_layouts_that_do_not_fit(rank, size):
    texts = []
    for parameters in ({"partitions": 2}, {"partitions": 1, "ddp": False}):
        try:
            smp.init(parameters)
        except ValueError as problem:
            texts.append(str(problem))
    assert not smp.is_initialized()
    return texts


def documented_keys():
    """(key, alias or None, values, PyTorch) of each row of docs/reference/smp_parameters.md."""
    text = (pathlib.Path(__file__).resolve().parents[2] / "docs/reference/smp_parameters.md").read_text()
    for row in re.findall(r"^\| (`.*) \|$", text, re.MULTILINE):
        cells = row.split(" | ")
        key, *alias = re.findall("`(.*?)`", cells[0])
        yield key, (alias or [None])[0], cells[2], cells[-1]


# Values that a key accepts only together with others, or that its row does not contain.
GIVEN = {"pipeline": "1f1b", "placement_strategy": "spread", "sharding_strategy": "SHARD_GRAD_OP", "memory_weight": 0.5,
         "dynamic_loss_args": {"init_scale": 8.0, "scale_factor": 4.0, "scale_window": 5, "min_scale": 2.0,
                               "delayed_shift": 3},
         "dynamic_loss_scale": False, "active_microbatches": 3, "sdp_gradient_clipping": 0.5,
         "default_partition": 1, "auto_partition": False}
BESIDE = {"auto_partition": {"default_partition": 1}, "fp16_params": {"fp16": True},
          "load_partition": {"partition_file": "cut.json"}, "dynamic_loss_scale": {"static_loss_scale": 8},
          "tensor_parallel_degree": {"ddp": True}, "ddp_dist_backend": {"ddp": True},
          **dict.fromkeys(("sdp_param_persistence_threshold", "sdp_max_live_parameters", "sdp_gradient_clipping"),
                          {"sharded_data_parallel_degree": 2})}
# Keys for sharded parameters, which pipelines do not support.
OF_PARTS = ("sharded_data_parallel_degree", "hybrid_shard_degree", "sharding_strategy",
            "sdp_param_persistence_threshold", "sdp_max_live_parameters", "sdp_gradient_clipping")
OF_KIND = {"integer": 2, "number": 2, "true, false": True, "list": ["a", "b"], "object": {"a": 0}, "text": "a",
           "anything": "a", "refused": True, "false": True, "true": False, "1": 2, "auto": "nccl"}


def value_of(key, values):
    """A value that is not the default."""
    if key in GIVEN:
        return GIVEN[key]
    if key in ("ddp", "sdp_hierarchical_allgather"):
        return key == "ddp"
    if key == "optimize":
        return "speed"
    return next(value for kind, value in OF_KIND.items() if values.startswith(kind))


class Ranks(unittest.TestCase):
    def test_places_and_groups_are_those_of_smps_tables_and_carry_objects(self):
        for placement, (places, groups) in TABLES.items():
            with self.subTest(placement=placement):
                results = ranks.run(8, on_a_mesh, placement)
                self.assertEqual(" ".join(place for place, _ in results), places)
                self.assertEqual(results[3][1], {**groups, "world": list(range(8))})

    def test_without_parameters_there_is_one_partition_and_a_second_call_may_not_differ(self):
        for text in ranks.run(2, with_one_partition):
            self.assertIn("called before with other parameters", text)

    def test_a_layout_that_does_not_fit_is_refused_with_its_numbers(self):
        for pp, ddp in ranks.run(3, with_layouts_that_do_not_fit):
            self.assertRegex(pp, "3 ranks|ranks is 3")
            self.assertIn("ddp is false, but 3 ranks make 3 replicas", ddp)

    def test_a_job_of_one_process_needs_no_launcher(self):
        script = ("import smdistributed.modelparallel.torch as smp\n"
                  "import smdistributed.modelparallel, shoal.torch.parallel\n"
                  "try:\n    smp.rank()\n    assert False\n"
                  "except RuntimeError as problem:\n    assert 'smp.init()' in str(problem)\n"
                  "import smdistributed.modelparallel.torch.objects as objects\n"
                  "assert smp is shoal.torch.parallel and objects.rank is smp.rank and not smp.is_initialized()\n"
                  "smp.init()\n"
                  "assert (smp.rank(), smp.size(), smp.local_rank(), smp.dp_size()) == (0, 1, 0, 1)\n"
                  "assert smp.state.cfg.microbatches == 4 and smp.state.cfg.partitions == 1\n"
                  "assert smp.state.module_manager.translate_functions == [] and not smp.is_tracing()\n"
                  "assert tuple(map(int, smdistributed.modelparallel.__version__.split('.')[:2])) >= (1, 10)\n"
                  "smp.shutdown()\n"
                  "assert not smp.is_initialized()\n"
                  "smp.init({'enabled': True, 'parameters': {'microbatches': 2, 'optimize': 'speed'}})\n"
                  "assert (smp.state.cfg.microbatches, smp.state.cfg.optimize) == (4, 'speed'), smp.state.cfg\n"
                  "from smdistributed.modelparallel.torch.nn.huggingface.gpt2 import (\n"
                  "    translate_hf_state_dict_to_smdistributed_gpt2, translate_state_dict_to_hf_gpt2)\n"
                  "assert translate_state_dict_to_hf_gpt2({'h.0': 1}, max_seq_len=8) == {'h.0': 1}\n"
                  "try:\n    translate_state_dict_to_hf_gpt2({'transformer.seq_layers.0': 1})\n    assert False\n"
                  "except ValueError as problem:\n    assert 'DistributedTransformer' in str(problem)\n")
        environment = {**os.environ, "SM_HP_MP_PARAMETERS": json.dumps({"partitions": 1, "microbatches": 4})}
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            environment.pop(name, None)
        done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)


class Parameters(unittest.TestCase):
    def refused(self, parameters):
        with self.assertRaises(ValueError) as caught:
            smp.Config(parameters)
        return str(caught.exception)

    def test_every_key_has_its_value_or_default(self):
        config = smp.Config({"partitions": 4, "microbatches": "8", "optimize": "speed", "ddp": "True",
                             "prescaled_batch": True, "shard_optimizer_state": True, "sharding_strategy": "NO_SHARD"})
        self.assertEqual((config.partitions, config.pipeline_parallel_degree, config.microbatches), (4, 4, 8))
        self.assertEqual((config.active_microbatches, config.memory_weight, config.pipeline), (6, 0.2, "interleaved"))
        self.assertEqual((config.sharding_level, config.hybrid_shard_degree, config.shard_optimizer_state),
                         (1, 1, True))
        self.assertIs(config.auto_partition, True)
        with self.assertRaisesRegex(AttributeError, "no parameter partition$"):
            config.partition

    def test_parameters_that_are_not_enabled_have_no_effect(self):
        on = {"partitions": 4, "ddp": True, "auto_partition": False, "default_partition": 1, "fp16_params": True}
        for off in ({"enabled": False}, {"enabled": "False", "parameters": on}, {"enabled": 0, "parameters": on}):
            config = smp.Config(off)
            self.assertEqual(config._parsed["keys"], smp.Config({})._parsed["keys"])
            self.assertFalse(config.ddp or config.fp16_params)

    def test_wrong_keys_and_values_are_told_all_at_once(self):
        text = self.refused({"partition": 4, "microbatches": 0})
        self.assertIn("did you mean partitions", text)
        self.assertIn("microbatches is 0", text)

    def test_what_the_script_says_in_code_need_not_be_in_the_parameters(self):
        config = smp.Config({"partitions": 2, "auto_partition": False, "default_partition": 1,
                             "offload_activations": True})
        self.assertEqual((config.auto_partition, config.default_partition), (False, 1))
        self.assertIn("default_partition is not given", self.refused({"partitions": 2, "auto_partition": False}))

    def test_what_pytorch_models_cannot_have_is_refused_by_name(self):
        for key, value in {"pipeline": "zero_bubble", "virtual_pipeline_parallel_degree": 2,
                           "manual_partition": [1, 2], "activation_checkpointing": "each"}.items():
            text = self.refused({"partitions": 2, key: value})
            self.assertIn(f"{key} is", text)
            self.assertRegex(text, "which (there is not here|PyTorch models do not have): ")
        smp.Config({"partitions": 2, "activation_checkpointing": "none", "virtual_pipeline_parallel_degree": 1})
        for parts in ({"sharded_data_parallel_degree": 2}, {"sharding_strategy": "SHARD_GRAD_OP"}):
            self.assertIn("pipeline_parallel_degree is 2, which PyTorch models do not have together",
                          self.refused({"partitions": 2, **parts}))

    def test_the_document_says_of_every_key_what_config_does_with_it(self):
        rows = list(documented_keys())
        self.assertGreater(len(rows), 55)
        for key, alias, values, pytorch in rows:
            value = value_of(key, values)
            parameters = {"partitions": 4, "microbatches": 8, **BESIDE.get(key, {}), key: value}
            if key == "pipeline_parallel_degree" or key in OF_PARTS:
                del parameters["partitions"]
            with self.subTest(key=key, value=value, pytorch=pytorch):
                if pytorch.startswith(("refused", "others are refused")):
                    self.assertIn(f"{key} is", self.refused(parameters))
                    continue
                config = smp.Config(parameters)
                if pytorch.startswith("no effect"):
                    with self.assertLogs("shoal.torch.parallel", logging.WARNING) as logged:
                        config.log_notices()
                    self.assertIn(f"{key} (", "".join(logged.output))
                elif key != "placement_strategy":
                    self.assertEqual(getattr(config, key), value)
                if alias:
                    self.assertEqual(getattr(config, alias), getattr(config, key))

    def test_mp_parameters_are_taken_from_the_words_of_a_script(self):
        for words in (["--mp_parameters", "partitions=2,ddp=True"], ["--mp_parameters=partitions=2,ddp=True"], []):
            script = ["script.py", "--mp_parameters_of", "mine"]
            with unittest.mock.patch.object(sys, "argv", [*script, *words, "--do_train"]):
                trainer._drop_mp_parameters()
                self.assertEqual(sys.argv, [*script, "--do_train"])

    def test_a_model_is_made_with_the_type_that_is_asked_for(self):
        with smp.model_creation(dtype=torch.bfloat16):
            self.assertEqual(torch.nn.Linear(2, 2).weight.dtype, torch.bfloat16)
        self.assertEqual(torch.get_default_dtype(), torch.float32)

    def test_a_key_without_effect_is_logged_with_its_reason(self):
        with self.assertLogs("shoal.torch.parallel", logging.WARNING) as logged:
            smp.Config({"sdp_reduce_bucket_size": 7, "ddp_port": 1}).log_notices()
        self.assertIn("sdp_reduce_bucket_size (7) has no effect: ", "\n".join(logged.output))
        self.assertIn("ddp_port (1) has no effect: ", "\n".join(logged.output))


if __name__ == "__main__":
    unittest.main()
