"""Writes the model folder for infinity: the default encoder's checkpoint and its ONNX graph.

Runs in infinity's environment: `python infinity_model.py CHECKPOINT FOLDER`. Exports with the legacy exporter and eager
attention. ONNX Runtime's optimizer, which infinity uses, can then fuse operators of the graph.
"""

import shutil
import sys
from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer

checkpoint, folder = map(Path, sys.argv[1:])
shutil.copytree(checkpoint, folder, dirs_exist_ok=True)
(folder / "onnx").mkdir(exist_ok=True)
tokenize = AutoTokenizer.from_pretrained(folder)
tokens = tokenize(["a short text", "one that is longer"], padding=True, return_tensors="pt")
names = ["input_ids", "attention_mask", "token_type_ids"]
with torch.no_grad():
    torch.onnx.export(
        AutoModel.from_pretrained(folder, attn_implementation="eager").eval(),
        tuple(tokens[name] for name in names),
        folder / "onnx" / "model.onnx",
        dynamo=False,
        opset_version=14,
        input_names=names,
        output_names=["last_hidden_state"],
        dynamic_axes={name: {0: "batch_size", 1: "sequence_length"} for name in [*names, "last_hidden_state"]},
    )
