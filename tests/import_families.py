"""The tiny models of `tests/imports`: for each family the class that makes it in transformers and its configuration, or, where transformers has
none, the tensors that its published folders have."""
import dataclasses


@dataclasses.dataclass
class Family:
    name: str
    model_class: str = ""
    config_class: str = ""
    config: dict = dataclasses.field(default_factory=dict)
    # A kind of `VOCABULARIES`, and what llama.cpp calls its rules.
    vocabulary: str = "bytes"
    pre: str = "gpt-2"
    dtype: str = "bf16"
    # The class in config.json, where it is not the one that makes the model.
    architecture: str = ""
    # What published configurations say otherwise than transformers' of today.
    patch: dict = dataclasses.field(default_factory=dict)
    without: tuple = ()
    # Names and shapes, instead of a class of transformers.
    tensors: dict = dataclasses.field(default_factory=dict)
    # Further files of the folder, as JSON.
    files: dict = dataclasses.field(default_factory=dict)
    # Ends of the names of tensors of which published folders have one row many times.
    repeated: tuple = ()
    # Keys that are written otherwise on purpose, and ends of the names of tensors that have another type.
    unlike: tuple = ()


def rope(theta=10000.0, **more):
    return {"rope_type": "default", "rope_theta": theta, **more}


def plain(**more):
    """What most decoders are configured by."""
    base = {
        "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "rope_parameters": rope(),
    }
    return {key: value for key, value in {**base, **more}.items() if value is not None}


def old(**more):
    """… and those before them, with norms of means."""
    return plain(**{"head_dim": None, "rms_norm_eps": None, "layer_norm_eps": 1e-5, **more})


SENTENCES = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ],
    "1_Pooling/config.json": {"word_embedding_dimension": 64, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True},
}
HALF = rope(partial_rotary_factor=0.5)
T5 = {"vocab_size": 320, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4, "relative_attention_num_buckets": 32, "feed_forward_proj": "gated-gelu",
  "layer_norm_epsilon": 1e-6, "decoder_start_token_id": 0}
NEMOTRON_H = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "ssm_state_size": 16,
    "mamba_num_heads": 6, "mamba_head_dim": 16, "n_groups": 2, "conv_kernel": 4, "expand": 2, "chunk_size": 16, "use_conv_bias": True, "use_bias": False,
    "mlp_bias": False, "attention_bias": False, "mamba_proj_bias": False, "mlp_hidden_act": "relu2", "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": False, "residual_in_fp32": False, "max_position_embeddings": 512,
}
LINEAR = {
    "num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}
DOTS3_LOCAL = {
    "swa_num_attention_heads": 2, "swa_num_key_value_heads": 2, "swa_q_lora_rank": 48, "swa_kv_lora_rank": 24, "swa_qk_nope_head_dim": 20, "swa_qk_rope_head_dim": 8,
    "swa_v_head_dim": 12,
}
LATENT = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "n_shared_experts": 1, "n_routed_experts": 8, "kv_lora_rank": 32, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "qk_nope_head_dim": 24, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "max_position_embeddings": 512, "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
}
BERT = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64,
    "type_vocab_size": 2, "layer_norm_eps": 1e-12, "hidden_act": "gelu",
}


RWKV7 = {"vocab_size": 320, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3, "tie_word_embeddings": False, "model_type": "rwkv7"}


def layers(count, parts):
    """Tensors of layers, `{}` being the layer's number."""
    return {name.format(layer): shape for layer in range(count) for name, shape in parts.items()}


def rwkv6():
    width, inner, head, mix, decay = 128, 256, 64, 32, 64
    vectors = {f"attention.time_maa_{x}": (1, 1, width) for x in "xwkvrg"}
    parts = {
        **vectors, "attention.time_maa_w1": (width, 5 * mix), "attention.time_maa_w2": (5, mix, width), "attention.time_decay": (1, 1, width),
        "attention.time_decay_w1": (width, decay), "attention.time_decay_w2": (decay, width), "attention.time_faaaa": (width // head, head),
        **{f"attention.{x}.weight": (width, width) for x in ("receptance", "key", "value", "gate", "output")},
        "attention.ln_x.weight": (width,), "attention.ln_x.bias": (width,), "feed_forward.time_maa_k": (1, 1, width), "feed_forward.time_maa_r": (1, 1, width),
        "feed_forward.key.weight": (inner, width), "feed_forward.receptance.weight": (width, width), "feed_forward.value.weight": (width, inner),
        "ln1.weight": (width,), "ln1.bias": (width,), "ln2.weight": (width,), "ln2.bias": (width,),
    }
    return {
        "rwkv.embeddings.weight": (320, width), "rwkv.blocks.0.pre_ln.weight": (width,), "rwkv.blocks.0.pre_ln.bias": (width,),
        **layers(3, {"rwkv.blocks.{}." + name: shape for name, shape in parts.items()}),
        "rwkv.ln_out.weight": (width,), "rwkv.ln_out.bias": (width,), "head.weight": (320, width),
    }


def rwkv7(root, attention, feed_forward, norms, whole, modules, width=128, inner=256, ranks=(32, 32, 32, 64), count=3, network=None):
    """The seventh memory: small matrices as modules of two layers, or with inputs before outputs."""
    parts = {f"{attention}x_{x}": (1, 1, width) for x in "rwkvag"}
    parts |= {f"{attention}k_k": (width,), f"{attention}k_a": (width,), f"{attention}r_k": (width // 64, 64)}
    for x, rank in zip("wavg", ranks):
        if modules:
            parts |= {f"{attention}{x}_lora.lora.0.weight": (rank, width), f"{attention}{x}_lora.lora.2.weight": (width, rank)}
            parts |= {f"{attention}{x}_lora.lora.2.bias": (width,)} if x != "g" else {}
        else:
            parts |= {f"{attention}{x}1": (width, rank), f"{attention}{x}2": (rank, width)}
            parts |= {f"{attention}{x}0": (1, 1, width)} if x != "g" else {}
    names = ("r_proj", "k_proj", "v_proj", "o_proj", "g_norm") if modules else ("receptance", "key", "value", "output", "ln_x")
    parts |= {f"{attention}{x}.weight": (width, width) for x in names[:4]}
    if feed_forward:
        parts |= {f"{attention}{names[4]}.{x}": (width,) for x in ("weight", "bias")}
        parts |= {f"{feed_forward}x_k": (width,), f"{feed_forward}key.weight": (inner, width), f"{feed_forward}value.weight": (width, inner)}
    parts |= network or {}
    parts |= {f"{norm}.{x}": (width,) for norm in norms for x in (("weight", "bias") if feed_forward else ("weight",))}
    all_layers = layers(count, {root + "{}." + name: shape for name, shape in parts.items()})
    # The first layer has no values of one before it.
    return whole | {name: shape for name, shape in all_layers.items() if not modules or f"{root}0.{attention}v_lora" not in name}


def qwen_network(width, inner):
    return {f"mlp.{x}_proj.weight": (inner, width) for x in ("gate", "up")} | {"mlp.down_proj.weight": (width, inner)}


def with_bias(*names, width=128):
    return {f"{name}.{x}": (width,) for name in names for x in ("weight", "bias")}


def usual(width, rows=320, **more):
    return {"model.embed_tokens.weight": (rows, width), "model.norm.weight": (width,), "lm_head.weight": (rows, width), **more}


def rwkv6_qwen2(width=128, kv=64, mix=32, decay=64):
    parts = {
        **{f"self_attn.time_maa_{x}": (1, 1, width) for x in "xwkvrg"}, "self_attn.time_maa_w1": (width, 5 * mix), "self_attn.time_maa_w2": (5, mix, width),
        "self_attn.time_decay": (1, 1, width), "self_attn.time_decay_w1": (width, decay), "self_attn.time_decay_w2": (decay, width),
        "self_attn.q_proj.weight": (width, width), "self_attn.q_proj.bias": (width,), "self_attn.gate.weight": (width, width), "self_attn.o_proj.weight": (width, width),
        **{f"self_attn.{x}_proj.weight": (kv, width) for x in "kv"}, **{f"self_attn.{x}_proj.bias": (kv,) for x in "kv"},
        "input_layernorm.weight": (width,), "post_attention_layernorm.weight": (width,), **qwen_network(width, 256),
    }
    return usual(width, **layers(2, {"model.layers.{}." + name: shape for name, shape in parts.items()}))


def talkie(width=64, heads=4, inner=96):
    parts = {
        **{f"attn.attn_{x}.weight": (width, width) for x in ("query", "key", "value", "resid")}, "attn.head_gain.head_g": (heads,), "attn_gain.a_g": (1,),
        "mlp.mlp_gate.weight": (inner, width), "mlp.mlp_linear.weight": (inner, width), "mlp.mlp_resid.weight": (width, inner), "mlp_gain.a_g": (1,), "embed_skip.a_g": (1,),
    }
    return {"model.embed.weight": (320, width), "lm_head": (320, width), "lm_head_gain.w_g": (1,),
            **layers(2, {"model.blocks.{}." + name: shape for name, shape in parts.items()})}


def hrm(width=64, inner=96):
    parts = {"attn.gqkv_proj.weight": (4 * width, width), "attn.o_proj.weight": (width, width), "mlp.gate_up_proj.weight": (2 * inner, width), "mlp.down_proj.weight": (width, inner)}
    stacks = {f"model.{stack}_module.layers.{{}}.{name}": shape for stack in "LH" for name, shape in parts.items()}
    return {"model.embed_tokens.weight": (320, width), "lm_head.weight": (320, width), "model.z_L_init": (width,), **layers(2, stacks)}


def plamo2(width=64, heads=4, head=16, inner=96, state=16):
    both = {
        **{f"{x}.weight": (width,) for x in ("pre_mixer_norm", "post_mixer_norm", "pre_mlp_norm", "post_mlp_norm")},
        "mlp.gate_up_proj.weight": (2 * inner, width), "mlp.down_proj.weight": (width, inner),
    }
    mamba = {
        "mixer.in_proj.weight": (2 * heads * head, width), "mixer.conv1d.weight": (heads * head, 1, 4), "mixer.bcdt_proj.weight": (64 + 2 * state, heads * head),
        "mixer.dt_proj.weight": (heads, 64), "mixer.dt_bias": (heads,), "mixer.A_log": (heads,), "mixer.D": (heads,), "mixer.dt_norm_weight": (64,),
        "mixer.B_norm_weight": (state,), "mixer.C_norm_weight": (state,), "mixer.out_proj.weight": (width, heads * head),
    }
    attention = {
        "mixer.qkv_proj.weight": ((heads + 4) * head, width), "mixer.q_weight": (heads, head), "mixer.k_weight": (2, head), "mixer.o_proj.weight": (width, heads * head),
    }
    kinds = [mamba, attention, mamba, attention]
    return {"model.embed_tokens.weight": (320, width), "model.norm.weight": (width,),
            **{f"model.layers.layers.{i}.{name}": shape for i, kind in enumerate(kinds) for name, shape in (both | kind).items()}}


def bitnet(width=64, inner=96):
    parts = {
        **{f"self_attn.{x}_proj.weight": (width if x in "qo" else 32, width) for x in "qkvo"}, **qwen_network(width, inner), "self_attn.inner_attn_ln.weight": (width,),
        "mlp.ffn_layernorm.weight": (inner,), "input_layernorm.weight": (width,), "post_attention_layernorm.weight": (width,),
    }
    tensors = usual(width, **layers(2, {"model.layers.{}." + name: shape for name, shape in parts.items()}))
    return {name: shape for name, shape in tensors.items() if name != "lm_head.weight"}


def kimi():
    width, heads, head, inner, expert, conv = 64, 4, 16, 96, 32, 4
    norms = {"input_layernorm.weight": (width,), "post_attention_layernorm.weight": (width,)}
    delta = {
        **{f"self_attn.{x}_proj.weight": (heads * head, width) for x in "qkv"}, **{f"self_attn.{x}_conv1d.weight": (heads * head, 1, conv) for x in "qkv"},
        "self_attn.A_log": (1, 1, heads, 1), "self_attn.dt_bias": (heads * head,), "self_attn.b_proj.weight": (heads, width),
        "self_attn.f_a_proj.weight": (head, width), "self_attn.f_b_proj.weight": (heads * head, head), "self_attn.g_a_proj.weight": (head, width),
        "self_attn.g_b_proj.weight": (heads * head, head), "self_attn.o_norm.weight": (head,), "self_attn.o_proj.weight": (width, heads * head),
    }
    latent = {
        "self_attn.q_proj.weight": (heads * 24, width), "self_attn.kv_a_proj_with_mqa.weight": (32 + 8, width), "self_attn.kv_a_layernorm.weight": (32,),
        "self_attn.kv_b_proj.weight": (heads * (16 + 20), 32), "self_attn.o_proj.weight": (width, heads * 20),
    }
    dense = {f"mlp.{x}_proj.weight": (inner, width) for x in ("gate", "up")} | {"mlp.down_proj.weight": (width, inner)}
    moe = {
        "block_sparse_moe.gate.weight": (4, width), "block_sparse_moe.gate.e_score_correction_bias": (4,),
        **{f"block_sparse_moe.experts.{e}.{w}.weight": (width, expert) if w == "w2" else (expert, width) for e in range(4) for w in ("w1", "w2", "w3")},
        **{f"block_sparse_moe.shared_experts.{x}_proj.weight": (expert, width) for x in ("gate", "up")},
        "block_sparse_moe.shared_experts.down_proj.weight": (width, expert),
    }
    kinds = [norms | delta | dense, norms | delta | moe, norms | latent | moe]
    return {
        "model.embed_tokens.weight": (320, width), "model.norm.weight": (width,), "lm_head.weight": (320, width),
        **{f"model.layers.{i}.{name}": shape for i, kind in enumerate(kinds) for name, shape in kind.items()},
    }


def minimax(**parts):
    """What MiniMax's folders have in all layers, with these parts for layers of these numbers: names within the layer, and shapes."""
    tensors = {"model.embed_tokens.weight": (320, 64), "model.norm.weight": (64,), "lm_head.weight": (320, 64)}
    attention = {"self_attn.q_proj.weight": (64, 64), "self_attn.k_proj.weight": (32, 64), "self_attn.v_proj.weight": (32, 64), "self_attn.o_proj.weight": (64, 64)}
    experts = {f"block_sparse_moe.experts.{i}.{part}.weight": shape for i in range(4) for part, shape in (("w1", (32, 64)), ("w2", (64, 32)), ("w3", (32, 64)))}
    kinds = {"attention": attention, "experts": experts | {"block_sparse_moe.gate.weight": (4, 64)}} | parts
    both = {"input_layernorm.weight": (64,), "post_attention_layernorm.weight": (64,)}
    return lambda which: tensors | {
        f"model.layers.{i}.{name}": shape for i, of in enumerate(which) for part in [both, *(kinds[kind] for kind in of)] for name, shape in part.items()}


def minimax_01():
    tensors = minimax(lightning={"self_attn.qkv_proj.weight": (192, 64), "self_attn.norm.weight": (64,), "self_attn.output_gate.weight": (64, 64),
                                 "self_attn.out_proj.weight": (64, 64)})([("lightning", "experts")] * 7 + [("attention", "experts")])
    factors = {f"layernorm_{part}_{of}": number for part in ("full_attention", "linear_attention", "mlp") for of, number in (("alpha", 1.5), ("beta", 1.0))}
    config = plain(num_hidden_layers=8, intermediate_size=32, num_local_experts=4, num_experts_per_tok=2, rotary_dim=8, model_type="minimax_text_01",
                   attn_type_list=[0] * 7 + [1], **factors)
    index = {"metadata": {}, "weight_map": {name: "model.safetensors" for name in tensors}}
    # The converter leaves out which layers attend where it is every eighth, and has a template of its own.
    return Family("minimax-01", config=config, architecture="MiniMaxText01ForCausalLM", tensors=tensors, files={"model.safetensors.index.json": index},
                  unlike=("minimax-01.attention.recurrent_layers", "tokenizer.chat_template"))


def minimax_m3():
    heads = {"self_attn.q_norm.weight": (16,), "self_attn.k_norm.weight": (16,)}
    indexer = {"self_attn.index_q_proj.weight": (32, 64), "self_attn.index_k_proj.weight": (16, 64), "self_attn.index_q_norm.weight": (16,), "self_attn.index_k_norm.weight": (16,)}
    shared = {f"block_sparse_moe.shared_experts.{part}_proj.weight": shape for part, shape in (("gate", (32, 64)), ("up", (32, 64)), ("down", (64, 32)))}
    dense = {f"mlp.{part}_proj.weight": shape for part, shape in (("gate", (96, 64)), ("up", (96, 64)), ("down", (64, 96)))}
    sparse = indexer | shared | {"block_sparse_moe.e_score_correction_bias": (4,)}
    return minimax(heads=heads, sparse=sparse, dense=dense)([("attention", "heads", "dense")] + [("attention", "heads", "experts", "sparse")] * 2)


def minicpm3():
    width, heads, inner = 64, 4, 96
    parts = {
        "input_layernorm.weight": (width,), "post_attention_layernorm.weight": (width,), "self_attn.q_a_proj.weight": (48, width),
        "self_attn.q_a_layernorm.weight": (48,), "self_attn.q_b_proj.weight": (heads * 24, 48), "self_attn.kv_a_proj_with_mqa.weight": (32 + 8, width),
        "self_attn.kv_a_layernorm.weight": (32,), "self_attn.kv_b_proj.weight": (heads * 32, 32), "self_attn.o_proj.weight": (width, heads * 16),
        "mlp.gate_proj.weight": (inner, width), "mlp.up_proj.weight": (inner, width), "mlp.down_proj.weight": (width, inner),
    }
    return {
        "model.embed_tokens.weight": (300, width), "model.norm.weight": (width,), "lm_head.weight": (300, width),
        **layers(2, {"model.layers.{}." + name: shape for name, shape in parts.items()}),
    }


def grove(width=64, experts=4, inner=32, small=16):
    """Experts, and smaller ones of which two have one together."""
    network = {f"mlp.{name}.{number}.{part}.weight": (width, size) if part == "down_proj" else (size, width) for name, count, size in
      (("experts", experts, inner), ("chunk_experts", experts // 2, small)) for number in range(count) for part in ("gate_proj", "up_proj", "down_proj")}
    attention = {"q_proj.weight": (64, width), "k_proj.weight": (32, width), "v_proj.weight": (32, width), "o_proj.weight": (width, 64), "q_norm.weight": (16,), "k_norm.weight": (16,)}
    norms = {"input_layernorm.weight": (width,), "post_attention_layernorm.weight": (width,), "mlp.gate.weight": (experts, width), "mlp.expert_bias": (experts,)}
    parts = {f"self_attn.{name}": shape for name, shape in attention.items()} | norms | network
    return usual(width) | layers(2, {"model.layers.{}." + name: shape for name, shape in parts.items()})


def cogvlm(width=64, inner=96):
    """Matrices of text; those of images are left aside, which the converter does not do."""
    network = {"gate_proj.weight": (inner, width), "up_proj.weight": (inner, width), "down_proj.weight": (width, inner)}
    parts = {"input_layernorm.weight": (width,), "post_attention_layernorm.weight": (width,), "self_attn.language_expert_query_key_value.weight": (3 * width, width),
      "self_attn.language_expert_dense.weight": (width, width)} | {f"mlp.language_mlp.{name}": shape for name, shape in network.items()}
    return usual(width) | layers(2, {"model.layers.{}." + name: shape for name, shape in parts.items()})


def nomic(moe=False):
    width, inner = 64, 96
    attention = {"attn.Wqkv.weight": (3 * width, width), "attn.out_proj.weight": (width, width)}
    norms = {f"norm{i}.{x}": (width,) for i in (1, 2) for x in ("weight", "bias")}
    biases = {"attn.Wqkv.bias": (3 * width,), "attn.out_proj.bias": (width,)} if moe else {}
    dense = {"mlp.fc1.weight": (inner, width), "mlp.fc1.bias": (inner,), "mlp.fc2.weight": (width, inner), "mlp.fc2.bias": (width,)} if moe else {
        "mlp.fc11.weight": (inner, width), "mlp.fc12.weight": (inner, width), "mlp.fc2.weight": (width, inner)}
    experts = {"mlp.router.layer.weight": (4, width), "mlp.experts.mlp.w1": (4 * inner, width), "mlp.experts.mlp.w2": (4 * inner, width), "mlp.experts.bias": (width,)}
    every = [attention | biases | norms | (experts if moe and layer % 2 else dense) for layer in range(2)]
    return {
        "embeddings.word_embeddings.weight": (320, width), "embeddings.token_type_embeddings.weight": (1 if moe else 2, width), "emb_ln.weight": (width,),
        "emb_ln.bias": (width,), **{f"encoder.layers.{i}.{name}": shape for i, parts in enumerate(every) for name, shape in parts.items()},
    }


NOMIC = {
    "vocab_size": 320, "n_embd": 64, "n_head": 4, "n_layer": 2, "n_inner": 96, "n_positions": 8192, "max_trained_positions": 2048,
    "activation_function": "swiglu", "causal": False, "qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False, "prenorm": False,
    "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "rotary_emb_base": 1000, "layer_norm_epsilon": 1e-12,
    "type_vocab_size": 2,
    # Of a name that transformers does not know, whose own class would read none of these keys.
    "model_type": "nomic_bert_published",
}


def jina_v2():
    width, inner = 64, 96
    parts = {f"attention.self.{x}.{y}": (width, width) if y == "weight" else (width,) for x in ("query", "key", "value") for y in ("weight", "bias")}
    parts |= {"attention.output.dense.weight": (width, width), "attention.output.dense.bias": (width,)}
    parts |= {f"{x}.{y}": (width,) for x in ("attention.output.LayerNorm", "mlp.layernorm") for y in ("weight", "bias")}
    parts |= {"mlp.gated_layers.weight": (2 * inner, width), "mlp.wo.weight": (width, inner), "mlp.wo.bias": (width,)}
    return {
        "embeddings.word_embeddings.weight": (320, width), "embeddings.token_type_embeddings.weight": (2, width), "embeddings.LayerNorm.weight": (width,),
        "embeddings.LayerNorm.bias": (width,), "pooler.dense.weight": (width, width), "pooler.dense.bias": (width,),
        **layers(2, {"encoder.layer.{}." + name: shape for name, shape in parts.items()}),
    }


# Files of encoders are written as Ollama writes them, which knows what stands around a text without being told.
AROUND = tuple(f"tokenizer.ggml.{key}" for key in ("add_bos_token", "add_eos_token", "add_sep_token", "bos_token_id", "eos_token_id", "pre"))
F = Family


def all_heads(name):
    """The converter leaves out the heads of keys where they are as many as heads, which a reader takes for granted."""
    return (f"{name}.attention.head_count_kv",)


# The converter does not say of what types the tensors of some are.
UNTYPED = ("general.file_type",)
# The token of a tool's turn, at which an answer with a call ends: of GLM's later kinds alone the converter writes it.
ENDS_TOO = ("tokenizer.ggml.eom_token_id",)
FAMILIES = [
    # Decoders of attention and a part that feeds forward.
    F("llama", "LlamaForCausalLM", "LlamaConfig", plain(), "pieces"),
    F("llama-f16", "LlamaForCausalLM", "LlamaConfig", plain(rope_parameters=rope(500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
      original_max_position_embeddings=64) | {"rope_type": "llama3"}), dtype="f16"),
    F("mixtral", "MixtralForCausalLM", "MixtralConfig", plain(num_local_experts=4, num_experts_per_tok=2), "pieces"),
    F("mistral", "MistralForCausalLM", "MistralConfig", plain(sliding_window=None), "pieces"),
    F("qwen2", "Qwen2ForCausalLM", "Qwen2Config", plain(head_dim=None)),
    F("qwen2moe", "Qwen2MoeForCausalLM", "Qwen2MoeConfig", plain(head_dim=None, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
      shared_expert_intermediate_size=48, norm_topk_prob=False)),
    F("qwen3", "Qwen3ForCausalLM", "Qwen3Config", plain(tie_word_embeddings=True)),
    F("qwen3moe", "Qwen3MoeForCausalLM", "Qwen3MoeConfig", plain(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)),
    F("gemma", "GemmaForCausalLM", "GemmaConfig", plain(bos_token_id=2, eos_token_id=1, pad_token_id=0, tie_word_embeddings=True), "gemma",
      # The converter writes the places that CodeGemma's tokens have into the files of all, whatever stands there: they are known by their texts.
      unlike=tuple(f"tokenizer.ggml.{task}_token_id" for task in ("prefix", "suffix", "middle", "fsep", "eot"))),
    F("gemma2", "Gemma2ForCausalLM", "Gemma2Config", plain(bos_token_id=2, eos_token_id=1, pad_token_id=0, tie_word_embeddings=True, sliding_window=16,
      query_pre_attn_scalar=16, attn_logit_softcapping=50.0, final_logit_softcapping=30.0), "gemma"),
    F("gemma3", "Gemma3ForCausalLM", "Gemma3TextConfig", plain(bos_token_id=2, eos_token_id=1, pad_token_id=0, tie_word_embeddings=True, sliding_window=16,
      query_pre_attn_scalar=16, rope_parameters=None), "gemma"),
    F("phi2", "PhiForCausalLM", "PhiConfig", old(num_key_value_heads=4, rope_parameters=HALF),
      # The converter says four times the width, whatever the network has.
      unlike=("phi2.feed_forward_length",)),
    F("phi3", "Phi3ForCausalLM", "Phi3Config", plain(head_dim=None, pad_token_id=0, bos_token_id=1, eos_token_id=2, original_max_position_embeddings=512), "pieces"),
    F("gpt-oss", "GptOssForCausalLM", "GptOssConfig", plain(num_local_experts=4, num_experts_per_tok=2, intermediate_size=64, sliding_window=16,
      rope_parameters=rope(150000.0, factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False, original_max_position_embeddings=16) | {"rope_type": "yarn"})),
    F("command-r", "CohereForCausalLM", "CohereConfig", plain(head_dim=None, rms_norm_eps=None, layer_norm_eps=1e-5, logit_scale=0.25, tie_word_embeddings=True)),
    F("cohere2", "Cohere2ForCausalLM", "Cohere2Config", plain(rms_norm_eps=None, layer_norm_eps=1e-5, logit_scale=0.25, tie_word_embeddings=True,
      sliding_window=16, num_hidden_layers=4), patch={"rotary_pct": 1.0}),
    F("olmo", "OlmoForCausalLM", "OlmoConfig", plain(head_dim=None, rms_norm_eps=None, clip_qkv=None)),
    F("olmo2", "Olmo2ForCausalLM", "Olmo2Config", plain(head_dim=None)),
    F("olmo3", "Olmo3ForCausalLM", "Olmo3Config", plain(head_dim=None, num_hidden_layers=4, sliding_window=16)),
    F("olmoe", "OlmoeForCausalLM", "OlmoeConfig", plain(head_dim=None, num_experts=4, num_experts_per_tok=2)),
    F("granite", "GraniteForCausalLM", "GraniteConfig", plain(head_dim=None, embedding_multiplier=12.0, logits_scaling=4.0, residual_multiplier=0.25, attention_multiplier=0.2)),
    F("granitemoe", "GraniteMoeForCausalLM", "GraniteMoeConfig", plain(head_dim=None, embedding_multiplier=12.0, logits_scaling=4.0, residual_multiplier=0.25,
      attention_multiplier=0.2, num_local_experts=4, num_experts_per_tok=2)),
    F("starcoder2", "Starcoder2ForCausalLM", "Starcoder2Config", plain(head_dim=None, rms_norm_eps=None, norm_epsilon=1e-5, sliding_window=None)),
    F("stablelm", "StableLmForCausalLM", "StableLmConfig", old(use_qkv_bias=True, rope_parameters=HALF)),
    F("gpt2", "GPT2LMHeadModel", "GPT2Config", {"vocab_size": 320, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}, patch={"n_ctx": 128},
      unlike=all_heads("gpt2")),
    F("gptneox", "GPTNeoXForCausalLM", "GPTNeoXConfig", {"vocab_size": 320, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
      "num_attention_heads": 4, "max_position_embeddings": 512, "rotary_pct": 0.5, "rope_parameters": HALF}, patch={"rotary_pct": 0.5},
      unlike=(*all_heads("gptneox"), *UNTYPED)),
    F("falcon", "FalconForCausalLM", "FalconConfig", {"vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "multi_query": True,
      "new_decoder_architecture": False, "alibi": False, "bias": False, "parallel_attn": True}, patch={"num_kv_heads": 1}),
    F("falcon-40b", "FalconForCausalLM", "FalconConfig", {"vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_kv_heads": 2,
      "new_decoder_architecture": True, "alibi": False, "bias": False, "parallel_attn": True}),
    F("bloom", "BloomForCausalLM", "BloomConfig", {"vocab_size": 320, "hidden_size": 64, "n_layer": 2, "n_head": 4}, patch={"seq_length": 2048}),
    F("mpt", "MptForCausalLM", "MptConfig", {"vocab_size": 320, "d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 128}, architecture="MPTForCausalLM",
      unlike=(*all_heads("mpt"), *UNTYPED)),
    F("glm4", "Glm4ForCausalLM", "Glm4Config", plain(attention_bias=True, pad_token_id=0, rope_parameters=HALF), "glm", unlike=ENDS_TOO),
    F("glm", "GlmForCausalLM", "GlmConfig", plain(attention_bias=True, pad_token_id=0, rope_parameters=HALF), "glm",
      # It says the width in place of a context that has another name, and the size of heads nowhere.
      unlike=(*ENDS_TOO, "chatglm.context_length", "chatglm.attention.key_length", "chatglm.attention.value_length")),
    F("glm4moe", "Glm4MoeForCausalLM", "Glm4MoeConfig", plain(attention_bias=True, use_qk_norm=True, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, n_group=1,
      topk_group=1, first_k_dense_replace=1, moe_intermediate_size=32, rope_parameters=HALF), "glm", patch={"num_nextn_predict_layers": 0}),
    F("exaone4", "Exaone4ForCausalLM", "Exaone4Config", plain(sliding_window=None, layer_types=["full_attention"] * 2)),
    F("smollm3", "SmolLM3ForCausalLM", "SmolLM3Config", plain(num_hidden_layers=4, pad_token_id=0)),
    F("nemotron", "NemotronForCausalLM", "NemotronConfig", plain(rms_norm_eps=None, norm_eps=1e-5, rope_parameters=HALF, bos_token_id=1,
      eos_token_id=2), "pieces",
      # It writes two places of the vocabulary of published models.
      unlike=("tokenizer.ggml.padding_token_id", "tokenizer.ggml.unknown_token_id")),
    F("ministral3", "Ministral3ForCausalLM", "Ministral3Config", plain(sliding_window=None, rope_parameters=rope(1e6, factor=16.0, beta_fast=32.0, beta_slow=1.0, mscale=1.0,
      mscale_all_dim=1.0, original_max_position_embeddings=32, llama_4_scaling_beta=0.1) | {"rope_type": "yarn"})),
    F("llama4", "Llama4ForCausalLM", "Llama4TextConfig", plain(num_hidden_layers=4, intermediate_size=32, intermediate_size_mlp=96, num_local_experts=4,
      num_experts_per_tok=1, interleave_moe_layer_step=2, pad_token_id=0)),
    F("hunyuan-dense", "HunYuanDenseV1ForCausalLM", "HunYuanDenseV1Config", plain(pad_token_id=0, tie_word_embeddings=True)),
    F("ernie4_5", "Ernie4_5ForCausalLM", "Ernie4_5Config", plain(use_bias=False, tie_word_embeddings=True), "pieces"),
    F("chameleon", "ChameleonForConditionalGeneration", "ChameleonConfig", plain(head_dim=None, num_key_value_heads=4, vocabulary_map={"<image>": 3}, vq_config={
      "embed_dim": 8, "num_embeddings": 8, "latent_channels": 32, "resolution": 8, "base_channels": 32, "channel_multiplier": [1], "num_res_blocks": 1}),
      # The converter takes the norms of one head for those of all, which they are in published folders; that all of a head turns it leaves to the reader.
      repeated=("q_norm.weight", "k_norm.weight", "q_norm.bias", "k_norm.bias"), unlike=("chameleon.rope.dimension_count",)),
    F("grovemoe", config=plain(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32), architecture="GroveMoeForCausalLM", tensors=grove()),
    F("cogvlm", config=plain(head_dim=None, num_key_value_heads=4, bos_token_id=1, eos_token_id=2), vocabulary="pieces", architecture="CogVLMForCausalLM", tensors=cogvlm()),
    F("ernie4_5-moe", "Ernie4_5_MoeForCausalLM", "Ernie4_5_MoeConfig", plain(head_dim=None, tie_word_embeddings=True, moe_num_experts=4, moe_k=2, moe_num_shared_experts=1,
      moe_intermediate_size=32, moe_layer_start_index=1), "pieces",
      # The converter divides the width of a layer without experts by the heads of keys, which is that of the shared one in published models by chance.
      unlike=("ernie4_5-moe.expert_shared_feed_forward_length",)),
    F("seed_oss", "SeedOssForCausalLM", "SeedOssConfig", plain(attention_bias=True, pad_token_id=0)),
    minimax_01(),
    F("minimax-m3", config=plain(num_hidden_layers=3, intermediate_size=32, dense_intermediate_size=96, num_local_experts=4, num_experts_per_tok=2, n_shared_experts=1,
      routed_scaling_factor=2.0, rotary_dim=8, scoring_func="sigmoid", moe_layer_freq=[0, 1, 1], model_type="minimax_m3", sparse_attention_config={"sparse_num_index_heads": 2,
      "sparse_index_dim": 16, "sparse_topk_blocks": 4, "sparse_block_size": 8, "sparse_local_block": 1}), architecture="MiniMaxM3SparseForCausalLM", tensors=minimax_m3()),
    F("minimax-m2", "MiniMaxM2ForCausalLM", "MiniMaxM2Config", plain(num_local_experts=4, num_experts_per_tok=2, rotary_dim=8, rope_parameters=HALF), patch={"scoring_func": "sigmoid"}),
    F("dots1", "Dots1ForCausalLM", "Dots1Config", plain(n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=32, first_k_dense_replace=1,
      n_group=1, topk_group=1), patch={"scoring_func": "sigmoid"}),
    F("apertus", "ApertusForCausalLM", "ApertusConfig", plain(hidden_act="xielu")),
    F("arcee", "ArceeForCausalLM", "ArceeConfig", plain()),
    F("afmoe", "AfmoeForCausalLM", "AfmoeConfig", plain(num_hidden_layers=4, num_experts=4, num_local_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, num_dense_layers=1,
      num_shared_experts=1, n_group=1, topk_group=1, sliding_window=16)),
    F("qwen2vl", "Qwen2VLForConditionalGeneration", "Qwen2VLConfig", {"text_config": plain(head_dim=None, rope_parameters=rope(1e6, mrope_section=[2, 3, 3]))
      | {"model_type": "qwen2_vl_text"}, "vision_config": {"depth": 1, "embed_dim": 32, "hidden_size": 64, "num_heads": 2}}),
    F("qwen3vl", "Qwen3VLForConditionalGeneration", "Qwen3VLConfig", {"text_config": plain(rope_parameters=rope(1e6, mrope_section=[3, 3, 2])),
      "vision_config": {"depth": 1, "hidden_size": 32, "out_hidden_size": 64, "num_heads": 2, "intermediate_size": 64, "deepstack_visual_indexes": [0]}}),
    # Recurrent models, and those with layers of both kinds.
    F("mamba", "MambaForCausalLM", "MambaConfig", {"vocab_size": 320, "hidden_size": 64, "state_size": 16, "num_hidden_layers": 2, "conv_kernel": 4, "expand": 2,
      "time_step_rank": 4, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True}),
    F("falcon-mamba", "FalconMambaForCausalLM", "FalconMambaConfig", {"vocab_size": 320, "hidden_size": 64, "state_size": 16, "num_hidden_layers": 2, "conv_kernel": 4,
      "expand": 2, "time_step_rank": 4, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": False}),
    F("mamba2", "Mamba2ForCausalLM", "Mamba2Config", {"vocab_size": 320, "hidden_size": 64, "state_size": 16, "num_hidden_layers": 2, "conv_kernel": 4, "expand": 2,
      "head_dim": 16, "num_heads": 8, "n_groups": 2, "chunk_size": 16, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": False}),
    F("jamba", "JambaForCausalLM", "JambaConfig", {"vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
      "num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2, "expert_layer_period": 2, "expert_layer_offset": 1, "attn_layer_period": 4, "attn_layer_offset": 2,
      "use_mamba_kernels": False, "mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": 4, "rms_norm_eps": 1e-6, "max_position_embeddings": 512}, "pieces"),
    F("falcon-h1", "FalconH1ForCausalLM", "FalconH1Config", plain(mamba_d_ssm=64, mamba_n_heads=4, mamba_d_head=16, mamba_n_groups=2, mamba_d_state=16, mamba_d_conv=4,
      mamba_expand=2, mamba_chunk_size=16, mamba_conv_bias=True, mamba_proj_bias=False, mamba_norm_before_gate=False, mamba_rms_norm=True, projectors_bias=False,
      ssm_multipliers=[1.2, 0.8, 0.9, 1.1, 0.7], ssm_in_multiplier=1.1, ssm_out_multiplier=0.9, attention_in_multiplier=1.25, attention_out_multiplier=0.8, key_multiplier=0.9,
      lm_head_multiplier=0.7, embedding_multiplier=1.5, mlp_multipliers=[0.9, 0.8])),
    F("granitehybrid", "GraniteMoeHybridForCausalLM", "GraniteMoeHybridConfig", plain(head_dim=None, num_hidden_layers=3, layer_types=["mamba", "attention", "mamba"],
      embedding_multiplier=12.0, logits_scaling=4.0, residual_multiplier=0.25, attention_multiplier=0.2, num_local_experts=4, num_experts_per_tok=2, intermediate_size=32,
      shared_intermediate_size=48, position_embedding_type="nope", mamba_n_heads=8, mamba_n_groups=1, mamba_d_state=16, mamba_d_head=16, mamba_d_conv=4, mamba_expand=2,
      mamba_chunk_size=16, tie_word_embeddings=True), patch={"layer_types": ["mamba", "attention", "mamba"]}),
    F("granitehybrid-dense", "GraniteMoeHybridForCausalLM", "GraniteMoeHybridConfig", plain(head_dim=None, num_hidden_layers=3, layer_types=["mamba", "attention", "mamba"],
      embedding_multiplier=12.0, logits_scaling=4.0, residual_multiplier=0.25, attention_multiplier=0.2, num_local_experts=0, num_experts_per_tok=0, intermediate_size=48,
      shared_intermediate_size=48, position_embedding_type="nope", mamba_n_heads=8, mamba_n_groups=1, mamba_d_state=16, mamba_d_head=16, mamba_d_conv=4, mamba_expand=2,
      mamba_chunk_size=16, tie_word_embeddings=True), patch={"layer_types": ["mamba", "attention", "mamba"]},
      # The converter counts experts that are not there.
      unlike=("granitehybrid.expert_count", "granitehybrid.expert_used_count")),
    F("nemotron-h", "NemotronHForCausalLM", "NemotronHConfig", NEMOTRON_H | {"num_hidden_layers": 4, "layers_block_type": ["mamba", "attention", "mlp", "mamba"]},
      patch={"model_type": "nemotron_h_plain", "hybrid_override_pattern": "M*-M", "num_hidden_layers": 4, "n_groups": 2, "layer_norm_epsilon": 1e-5, "d_head": 16},
      without=("layers_block_type", "num_experts_per_tok", "n_routed_experts", "n_shared_experts", "moe_intermediate_size", "moe_shared_expert_intermediate_size", "n_group",
               "topk_group", "norm_topk_prob", "routed_scaling_factor", "moe_latent_size", "moe_shared_expert_overlap", "num_nextn_predict_layers", "mtp_layers_block_type")),
    F("nemotron-h-moe", "NemotronHForCausalLM", "NemotronHConfig", NEMOTRON_H | {"num_hidden_layers": 4, "layers_block_type": ["mamba", "moe", "attention", "moe"],
      "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 48, "n_shared_experts": 1, "n_group": 1,
      "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5}, patch={"num_nextn_predict_layers": 0, "d_head": 16}),
    F("lfm2", "Lfm2ForCausalLM", "Lfm2Config", plain(head_dim=None, rms_norm_eps=None, num_hidden_layers=3, norm_eps=1e-5, conv_L_cache=3, conv_bias=False,
      block_auto_adjust_ff_dim=True, block_multiple_of=16, block_ffn_dim_multiplier=1.0, tie_word_embeddings=True, layer_types=["conv", "full_attention", "conv"])),
    F("lfm2moe", "Lfm2MoeForCausalLM", "Lfm2MoeConfig", plain(head_dim=None, num_hidden_layers=3, norm_eps=1e-5, conv_L_cache=3, conv_bias=False, tie_word_embeddings=True,
      layer_types=["conv", "full_attention", "conv"], num_dense_layers=1, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, use_expert_bias=True)),
    F("qwen3next", "Qwen3NextForCausalLM", "Qwen3NextConfig", plain(**LINEAR, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32,
      decoder_sparse_step=1, rope_parameters=rope(1e7, partial_rotary_factor=0.25))),
    F("qwen35", "Qwen3_5ForCausalLM", "Qwen3_5TextConfig", plain(**LINEAR, rope_parameters=rope(1e7, partial_rotary_factor=0.5, mrope_section=[2, 1, 1], mrope_interleaved=True))),
    F("qwen35moe", "Qwen3_5MoeForCausalLM", "Qwen3_5MoeTextConfig", plain(**LINEAR, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
      shared_expert_intermediate_size=32, rope_parameters=rope(1e7, partial_rotary_factor=0.5, mrope_section=[2, 1, 1], mrope_interleaved=True))),
    F("kimi-linear", config={"vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
      "num_key_value_heads": 4, "head_dim": 16, "kv_lora_rank": 32, "q_lora_rank": None, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 20, "rms_norm_eps": 1e-5,
      "rope_theta": 10000.0, "num_experts": 4, "num_experts_per_token": 2, "num_shared_experts": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 2.5,
      "moe_router_activation_func": "sigmoid", "moe_renormalize": True, "num_expert_group": 1, "topk_group": 1, "tie_word_embeddings": False, "model_max_length": 1024,
      "model_type": "kimi_linear", "linear_attn_config": {"full_attn_layers": [3], "kda_layers": [1, 2], "head_dim": 16, "num_heads": 4, "short_conv_kernel_size": 4}},
      architecture="KimiLinearForCausalLM", tensors=kimi()),
    # Attention through a latent vector.
    F("deepseek2-lite", "DeepseekV2ForCausalLM", "DeepseekV2Config", LATENT | {"q_lora_rank": None, "topk_method": "greedy", "rope_parameters": rope()},
      patch={"scoring_func": "softmax"}),
    F("deepseek2", "DeepseekV2ForCausalLM", "DeepseekV2Config", LATENT | {"q_lora_rank": 48, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2,
      "rope_parameters": rope(factor=40.0, mscale=0.707, mscale_all_dim=0.707, beta_fast=32, beta_slow=1, original_max_position_embeddings=16) | {"rope_type": "yarn"}},
      patch={"scoring_func": "softmax"}),
    F("deepseek3", "DeepseekV3ForCausalLM", "DeepseekV3Config", LATENT | {"q_lora_rank": 48, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5, "norm_topk_prob": True,
      "rope_parameters": rope(factor=40.0, mscale=1.0, mscale_all_dim=1.0, beta_fast=32, beta_slow=1, original_max_position_embeddings=16) | {"rope_type": "yarn"}},
      patch={"scoring_func": "sigmoid", "topk_method": "noaux_tc"}),
    F("glm4moelite", "Glm4MoeLiteForCausalLM", "Glm4MoeLiteConfig", LATENT | {"q_lora_rank": 48, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.8,
      "norm_topk_prob": True, "rope_parameters": rope(1e6)}, "glm", patch={"num_nextn_predict_layers": 0, "scoring_func": "sigmoid"}),
    F("deepseek32", "DeepseekV32ForCausalLM", "DeepseekV32Config", LATENT | {"q_lora_rank": 48, "n_group": 2, "topk_group": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": True,
      "index_n_heads": 4, "index_head_dim": 64, "index_topk": 16,
      "rope_parameters": rope(factor=40.0, mscale=1.0, mscale_all_dim=1.0, beta_fast=32, beta_slow=1, original_max_position_embeddings=16) | {"rope_type": "yarn"}},
      patch={"scoring_func": "sigmoid", "topk_method": "noaux_tc", "num_nextn_predict_layers": 0}),
    F("glm-dsa", "GlmMoeDsaForCausalLM", "GlmMoeDsaConfig", LATENT | {"q_lora_rank": 48, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": True,
      "index_n_heads": 4, "index_head_dim": 64, "index_topk": 16, "indexer_types": ["full"] + ["shared"] * (LATENT["num_hidden_layers"] - 1), "rope_parameters": rope(1e6)}, "glm",
      patch={"scoring_func": "sigmoid", "topk_method": "noaux_tc", "num_nextn_predict_layers": 0}),
    F("dots3note", "Dots3NoteForCausalLM", "Dots3NoteTextConfig", LATENT | {"q_lora_rank": 48, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": True,
      "num_hidden_layers": 4, "head_dim": 32, "index_n_heads": 4, "index_head_dim": 64, "index_topk": 16, "layer_types": ["full_attention", "sliding_attention"] * 2,
      "sliding_window": 9, "shared_experts_intermediate_size": 32, "rope_theta": 80000.0, "swa_rope_theta": 500.0, "swa_head_dim": 28, "pad_token_id": 2, "bos_token_id": 0,
      "eos_token_id": 1, **DOTS3_LOCAL}, "dots",
      patch={"layer_types": ["full_attention", "sliding_attention"] * 2, "sliding_window_size": 9, "apply_mla_qkv_lora_rescale": True, "use_dsa": True, "first_k_dense_replace": 1,
      "scoring_func": "sigmoid", "topk_method": "noaux_tc", "swa_head_dim": 28, **DOTS3_LOCAL,
      "rope_parameters": {"full_attention": rope(80000.0), "sliding_attention": rope(500.0)}}, without=("per_layer_config", "sliding_window")),
    F("youtu", "YoutuForCausalLM", "YoutuConfig", {key: value for key, value in LATENT.items() if "expert" not in key and key not in ("moe_intermediate_size",
      "first_k_dense_replace")} | {"q_lora_rank": 48, "rope_parameters": rope(1e6)}),
    F("plm", config={"vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
      "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 20, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 100000.0,
      "tie_word_embeddings": True, "model_type": "plm"}, architecture="PLMForCausalLM",
      tensors={"model.embed_tokens.weight": (320, 64), "model.norm.weight": (64,), **layers(2, {"model.layers.{}." + name: shape for name, shape in {
        "input_layernorm.weight": (64,), "post_attention_layernorm.weight": (64,), "self_attn.q_proj.weight": (96, 64), "self_attn.kv_a_proj_with_mqa.weight": (40, 64),
        "self_attn.kv_a_layernorm.weight": (32,), "self_attn.kv_b_proj.weight": (144, 32), "self_attn.o_proj.weight": (64, 80), "mlp.up_proj.weight": (96, 64),
        "mlp.down_proj.weight": (64, 96)}.items()})}),
    F("minicpm3", config={"vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
      "q_lora_rank": 48, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
      "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 32, "rope_theta": 10000.0, "model_type": "minicpm3", "bos_token_id": 1, "eos_token_id": 2,
      "rope_scaling": {"type": "longrope", "long_factor": [1.0, 2.0, 3.0, 4.0], "short_factor": [1.0, 1.1, 1.2, 1.3], "original_max_position_embeddings": 512}},
      vocabulary="pieces", architecture="MiniCPM3ForCausalLM", tensors=minicpm3()),
    # Gemma's later kinds.
    F("gemma3n", "Gemma3nForCausalLM", "Gemma3nTextConfig", {"vocab_size": 320, "vocab_size_per_layer_input": 304, "hidden_size": 64, "hidden_size_per_layer_input": 16,
      "intermediate_size": 96, "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 16, "altup_num_inputs": 4,
      "laurel_rank": 64, "num_kv_shared_layers": 2, "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0, 0.0], "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
      "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"], "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}, "gemma"),
    F("gemma4", "Gemma4ForCausalLM", "Gemma4TextConfig", {"vocab_size": 384, "vocab_size_per_layer_input": 384, "hidden_size": 64, "hidden_size_per_layer_input": 16,
      "intermediate_size": 96, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 32, "num_kv_shared_layers": 3,
      "sliding_window": 16, "final_logit_softcapping": 30.0, "rms_norm_eps": 1e-6, "use_double_wide_mlp": True, "max_position_embeddings": 512,
      "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2, "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}, "gemma4"),
    F("gemma4-moe", "Gemma4ForCausalLM", "Gemma4TextConfig", {"vocab_size": 384, "hidden_size": 64, "hidden_size_per_layer_input": 0, "intermediate_size": 96,
      "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "num_global_key_value_heads": 1, "head_dim": 16, "global_head_dim": 32,
      "num_kv_shared_layers": 0, "sliding_window": 16, "attention_k_eq_v": True, "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32,
      "rms_norm_eps": 1e-6, "max_position_embeddings": 512, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"], "bos_token_id": 2,
      "eos_token_id": 1, "pad_token_id": 0}, "gemma4"),
    # Encoders.
    F("bert", "BertModel", "BertConfig", BERT, "words", "jina-v2-en", "f16", files=SENTENCES, unlike=AROUND),
    F("roberta-rank", "RobertaForSequenceClassification", "RobertaConfig", BERT | {"num_labels": 1, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
      "type_vocab_size": 1, "layer_norm_eps": 1e-5, "id2label": {0: "LABEL_0"}, "label2id": {"LABEL_0": 0}}, dtype="f16",
      # The converter leaves it to the reader to see that it ranks.
      unlike=("bert.pooling_type",)),
    F("distil-bert", "DistilBertModel", "DistilBertConfig", {"vocab_size": 320, "dim": 64, "hidden_dim": 96, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64},
      "words", "jina-v2-en", "f16", files=SENTENCES, unlike=AROUND),
    F("neo-bert", config={"vocab_size": 320, "hidden_size": 64, "intermediate_size": 144, "num_hidden_layers": 2, "num_attention_heads": 4, "max_length": 128,
      "norm_eps": 1e-6, "model_type": "neobert_published"}, vocabulary="words", pre="jina-v2-en", dtype="f16", architecture="NeoBERT", unlike=AROUND,
      tensors={"model.encoder.weight": (320, 64), "model.layer_norm.weight": (64,), "decoder.weight": (320, 64), "decoder.bias": (320,),
        **layers(2, {"model.transformer_encoder.{}." + name: shape for name, shape in {"attention_norm.weight": (64,), "qkv.weight": (192, 64), "wo.weight": (64, 64),
          "ffn_norm.weight": (64,), "ffn.w12.weight": (192, 64), "ffn.w3.weight": (64, 96)}.items()})}),
    F("gemma-embedding", "Gemma3TextModel", "Gemma3TextConfig", plain(bos_token_id=2, eos_token_id=1, pad_token_id=0, sliding_window=16, query_pre_attn_scalar=16,
      use_bidirectional_attention=True, rope_parameters=None, num_hidden_layers=6), "gemma", files=SENTENCES, patch={"sliding_window": 16}),
    F("nomic-bert", config=NOMIC, vocabulary="words", pre="jina-v2-en", dtype="f16", architecture="NomicBertModel", tensors=nomic(), files=SENTENCES, unlike=AROUND),
    F("nomic-bert-moe", config=NOMIC | {"activation_function": "gelu", "qkv_proj_bias": True, "mlp_fc1_bias": True, "mlp_fc2_bias": True, "moe_every_n_layers": 2,
      "num_experts": 4, "moe_top_k": 2, "n_positions": 2048, "type_vocab_size": 1}, vocabulary="words", pre="jina-v2-en", dtype="f16", architecture="NomicBertModel",
      tensors=nomic(moe=True), files=SENTENCES, unlike=AROUND),
    F("jina-bert-v2", config=BERT | {"position_embedding_type": "alibi", "max_position_embeddings": 512, "feed_forward_type": "geglu", "model_type": "bert"}, vocabulary="words",
      pre="jina-v2-en", dtype="f16", architecture="JinaBertModel", tensors=jina_v2(), files=SENTENCES, unlike=AROUND),
    F("modern-bert", "ModernBertModel", "ModernBertConfig", {"vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
      "max_position_embeddings": 256, "local_attention": 16, "global_attn_every_n_layers": 3, "norm_eps": 1e-5, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
      "cls_token_id": 1, "sep_token_id": 2}, dtype="f16", files=SENTENCES, patch={"layer_norm_eps": 1e-5}),
    F("eurobert", "EuroBertModel", "EuroBertConfig", plain(pad_token_id=0, mask_token_id=3, classifier_pooling="mean"), files=SENTENCES),
    F("t5encoder", "T5EncoderModel", "T5Config", T5, "unigram", dtype="f16"),
    # An encoder that reads prompts, and a decoder.
    F("t5", "T5ForConditionalGeneration", "T5Config", T5, "unigram", dtype="f16"),
    F("t5-relu", "T5ForConditionalGeneration", "T5Config", T5 | {"feed_forward_proj": "relu"}, "unigram", dtype="f16"),
    F("umt5", "UMT5ForConditionalGeneration", "UMT5Config", T5, "unigram", dtype="f16"),
    # A vocabulary of its own form.
    F("rwkv6", config={"vocab_size": 320, "hidden_size": 128, "attention_hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3, "head_size": 64,
      "layer_norm_epsilon": 1e-5, "rescale_every": 2, "tie_word_embeddings": False, "model_type": "rwkv6"}, vocabulary="bytewise", architecture="Rwkv6ForCausalLM",
      # The converter adds a template, and the place in the vocabulary of full size of the token that ends an answer.
      tensors=rwkv6(), unlike=("tokenizer.chat_template", "tokenizer.ggml.eot_token_id")),
    # Memories of the seventh version, in both spellings, and Qwen's layers with a memory.
    F("rwkv7", config=RWKV7 | {"head_dim": 64, "norm_eps": 1e-5, "decay_low_rank_dim": 32, "a_low_rank_dim": 32, "v_low_rank_dim": 32, "gate_low_rank_dim": 64},
      vocabulary="bytewise", architecture="RWKV7ForCausalLM", unlike=("tokenizer.chat_template", "tokenizer.ggml.eot_token_id"),
      tensors=rwkv7("model.layers.", "attn.", "ffn.", ("attn_norm", "ffn_norm"), {"model.embeddings.weight": (320, 128), "lm_head.weight": (320, 128),
        **with_bias("model.layers.0.pre_norm", "model.norm")}, modules=True)),
    F("rwkv7-plain", config=RWKV7 | {"head_size": 64, "layer_norm_epsilon": 1e-5, "intermediate_size": None, "lora_rank_decay": None, "lora_rank_iclr": None,
      "lora_rank_value_residual_mix": None, "lora_rank_gate": None}, vocabulary="bytewise", architecture="Rwkv7ForCausalLM",
      unlike=("tokenizer.chat_template", "tokenizer.ggml.eot_token_id"),
      tensors=rwkv7("model.blocks.", "attention.", "feed_forward.", ("ln1", "ln2"), {"model.embeddings.weight": (320, 128), "head.weight": (320, 128),
        **with_bias("model.pre_ln", "model.ln_out")}, modules=False, inner=512, ranks=(32, 32, 32, 32))),
    F("arwkv7", config=plain(hidden_size=128, head_dim=None, head_size=64, wkv_has_gate=True, wkv_version=7, intermediate_size=256, num_attention_heads=2,
      model_type="rwkv_hybrid"), architecture="RwkvHybridForCausalLM",
      tensors=rwkv7("model.layers.", "self_attn.time_mixer.", None, ("input_layernorm", "post_attention_layernorm"), usual(128), modules=False,
        ranks=(64, 64, 32, 128), count=2, network=qwen_network(128, 256))),
    F("rwkv6qwen2", config=plain(hidden_size=128, head_dim=None, intermediate_size=256, model_type="rwkv6qwen2"), architecture="RWKV6Qwen2ForCausalLM",
      tensors=rwkv6_qwen2()),
    # With ways of their own.
    F("talkie", config=plain(num_key_value_heads=4, model_type="talkie"), architecture="TalkieForCausalLM", tensors=talkie()),
    F("hrm_text", config=plain(num_key_value_heads=None, num_hidden_layers=24, num_layers_per_stack=2, H_cycles=3, L_cycles=3, embedding_scale=50.0, prefix_lm=True,
      model_type="hrm_text"), architecture="HrmTextForCausalLM", tensors=hrm(), unlike=all_heads("hrm_text")),
    F("plamo2", config=plain(head_dim=None, num_hidden_layers=4, hidden_size_per_head=16, mamba_num_heads=4, mamba_d_state=16, mamba_d_conv=4, mamba_step=2,
      tie_word_embeddings=True, model_type="plamo2"), vocabulary="plamo", architecture="Plamo2ForCausalLM", tensors=plamo2(),
      # It does not say what begins and ends a text, which the folder does.
      unlike=("tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token")),
    F("bitnet", config=plain(head_dim=None, hidden_act="silu", tie_word_embeddings=True, bos_token_id=1, eos_token_id=2, model_type="bitnet_published"), vocabulary="pieces", architecture="BitnetForCausalLM", tensors=bitnet()),
    F("llama-embed", "LlamaModel", "LlamaConfig", plain(), architecture="LlamaBidirectionalModel",
      # The converter leaves it to the reader.
      unlike=("llama-embed.attention.causal",)),
    F("mistral4", "Mistral4ForCausalLM", "Mistral4Config", LATENT | {"q_lora_rank": 48, "first_k_dense_replace": 0, "norm_topk_prob": True, "routed_scaling_factor": 1.0,
      "pad_token_id": 2, "bos_token_id": 0, "eos_token_id": 1, "rope_parameters": rope(rope_type="yarn", factor=8.0, original_max_position_embeddings=64, mscale=1.0,
      mscale_all_dim=1.0, beta_fast=32.0, beta_slow=1.0, llama_4_scaling_beta=0.1)}, architecture="Mistral3ForConditionalGeneration",
      # How scores grow with the position, which the converter leaves out.
      unlike=("mistral4.attention.temperature_scale", "mistral4.attention.temperature_length")),
]
