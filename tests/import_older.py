"""Further tiny models of `tests/imports`: of families whose folders are named in ways of their own, most of which transformers has no class for."""
from import_families import Family as F, all_heads, layers, plain, qwen_network, rope, usual, with_bias

HEADS, KV, HEAD, WIDTH, INNER = 4, 2, 16, 64, 96


def attention(kv=KV, bias=False, out="self_attn.o_proj"):
    """Queries, keys, values and the way back, under the names that most have."""
    rows = {"q": HEADS, "k": kv, "v": kv}
    parts = {f"self_attn.{x}_proj.weight": (heads * HEAD, WIDTH) for x, heads in rows.items()} | {f"{out}.weight": (WIDTH, HEADS * HEAD)}
    return parts | ({f"self_attn.{x}_proj.bias": (heads * HEAD,) for x, heads in rows.items()} if bias else {})


def norms(*names, bias=False):
    names = names or ("input_layernorm", "post_attention_layernorm")
    return with_bias(*names, width=WIDTH) if bias else {f"{name}.weight": (WIDTH,) for name in names}


def experts(prefix, names, inner=32, count=4):
    """One matrix each, the last of which is the way back."""
    shape = lambda name: (WIDTH, inner) if name == names[-1] else (inner, WIDTH)
    return {f"{prefix}{i}.{name}.weight": shape(name) for i in range(count) for name in names}


def network(prefix, inner=INNER):
    return {f"{prefix}{x}_proj.weight": (WIDTH, inner) if x == "down" else (inner, WIDTH) for x in ("gate", "up", "down")}


def each(parts, root="model.layers.", count=2):
    """The same tensors in each layer, or those of a list."""
    if isinstance(parts, dict):
        return layers(count, {root + "{}." + name: shape for name, shape in parts.items()})
    return {f"{root}{i}.{name}": shape for i, layer in enumerate(parts) for name, shape in layer.items()}


def routed(bias=None):
    """A layer without experts and one with them and with one that all tokens meet."""
    own = {"mlp.gate.weight": (4, WIDTH), **experts("mlp.experts.", ("gate_proj", "up_proj", "down_proj")), **network("mlp.shared_experts.", 32)}
    return [network("mlp."), own | ({bias: (4,)} if bias else {})]


def joined(own, part):
    return [own | layer for layer in part]


def old(*norm, root="transformer."):
    """What is of no layer in those after GPT-2."""
    table = {f"{root}wte.weight": (320, WIDTH), "lm_head.weight": (320, WIDTH)}
    return table | (with_bias(f"{root}{norm[0]}", width=WIDTH) if len(norm) == 1 else {f"{root}{norm[0]}.weight": (WIDTH,)})


# Of what vocabularies of pieces begin and end a text with.
ENDS = {"bos_token_id": 1, "eos_token_id": 2}
OLD = {"vocab_size": 320, "n_embd": WIDTH, "n_head": HEADS, "n_layer": 2, "n_positions": 256, "layer_norm_epsilon": 1e-5}
KINDS = {"full_attention": rope(500000.0), "sliding_attention": rope(10000.0)}
MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_shared_experts": 1, "first_k_dense_replace": 1, "norm_topk_prob": True}

FAMILIES = [
    F("internlm2", config=plain(head_dim=None, model_type="internlm2_published", **ENDS), vocabulary="pieces", architecture="InternLM2ForCausalLM", tensors={
      "model.tok_embeddings.weight": (320, WIDTH), "model.norm.weight": (WIDTH,), "output.weight": (320, WIDTH),
      **each({"attention.wqkv.weight": ((HEADS + 2 * KV) * HEAD, WIDTH), "attention.wo.weight": (WIDTH, WIDTH), **norms("attention_norm", "ffn_norm"),
        "feed_forward.w1.weight": (INNER, WIDTH), "feed_forward.w3.weight": (INNER, WIDTH), "feed_forward.w2.weight": (WIDTH, INNER)})}),
    F("orion", config=plain(head_dim=None, model_type="orion", **ENDS), vocabulary="pieces", architecture="OrionForCausalLM",
      tensors=usual(WIDTH, **{"model.norm.bias": (WIDTH,)}, **each({**attention(), **norms(bias=True), **network("mlp.")})),
      # It names a form of files before GGUF, which nothing reads; norms are no root mean squares.
      unlike=("orion.tensor_data_layout", "orion.attention.layer_norm_rms_epsilon")),
    F("minicpm", config=plain(head_dim=None, scale_emb=12, scale_depth=1.4, dim_model_base=16, model_type="minicpm", **ENDS), vocabulary="pieces",
      architecture="MiniCPMForCausalLM", tensors=usual(WIDTH, **each({**attention(), **norms(), **network("mlp.")})),
      # That all of a head turns, which it leaves to the reader.
      unlike=("minicpm.rope.dimension_count",)),
    F("chatglm", config={"padded_vocab_size": 320, "vocab_size": 320, "hidden_size": WIDTH, "ffn_hidden_size": INNER, "num_layers": 2, "num_attention_heads": HEADS,
      "kv_channels": HEAD, "multi_query_attention": True, "multi_query_group_num": KV, "seq_length": 512, "layernorm_epsilon": 1e-5, "rope_ratio": 500.0,
      "model_type": "chatglm_published"}, vocabulary="glm", architecture="ChatGLMModel", unlike=("tokenizer.ggml.eom_token_id",), tensors={
      "transformer.embedding.word_embeddings.weight": (320, WIDTH), "transformer.encoder.final_layernorm.weight": (WIDTH,), "transformer.output_layer.weight": (320, WIDTH),
      "transformer.rotary_pos_emb.inv_freq": (4,), **each({**norms(), "self_attention.query_key_value.weight": ((HEADS + 2 * KV) * HEAD, WIDTH),
        "self_attention.query_key_value.bias": ((HEADS + 2 * KV) * HEAD,), "self_attention.dense.weight": (WIDTH, WIDTH), "mlp.dense_h_to_4h.weight": (2 * INNER, WIDTH),
        "mlp.dense_4h_to_h.weight": (WIDTH, INNER)}, "transformer.encoder.layers.")}),
    F("exaone", config={"vocab_size": 320, "hidden_size": WIDTH, "intermediate_size": INNER, "num_layers": 2, "num_attention_heads": HEADS, "num_key_value_heads": KV,
      "max_position_embeddings": 512, "layer_norm_epsilon": 1e-5, "rope_theta": 10000.0, "activation_function": "silu", "model_type": "exaone_published"},
      architecture="ExaoneForCausalLM", tensors={**old("ln_f", "rms"), **each({**norms("ln_1", "ln_2"),
        **{f"attn.attention.{x}_proj.weight": ((HEADS if x == "q" else KV) * HEAD, WIDTH) for x in "qkv"}, "attn.attention.out_proj.weight": (WIDTH, WIDTH),
        "mlp.c_fc_0.weight": (INNER, WIDTH), "mlp.c_fc_1.weight": (INNER, WIDTH), "mlp.c_proj.weight": (WIDTH, INNER)}, "transformer.h.")},
      # Readers need the epsilon of root mean squares, which the converter takes for that of the mean.
      unlike=("exaone.attention.layer_norm_rms_epsilon",)),
    F("codeshell", config=OLD | {"n_inner": 4 * WIDTH, "num_query_groups": KV, "model_type": "codeshell"}, architecture="CodeShellForCausalLM", tensors={**old("ln_f"),
      **each({**norms("ln_1", "ln_2", bias=True), "attn.c_attn.weight": ((HEADS + 2 * KV) * HEAD, WIDTH), "attn.c_attn.bias": ((HEADS + 2 * KV) * HEAD,),
        "attn.c_proj.weight": (WIDTH, WIDTH), "attn.c_proj.bias": (WIDTH,), "mlp.c_fc.weight": (4 * WIDTH, WIDTH), "mlp.c_fc.bias": (4 * WIDTH,),
        "mlp.c_proj.weight": (WIDTH, 4 * WIDTH), "mlp.c_proj.bias": (WIDTH,)}, "transformer.h.")}),
    F("refact", config=OLD | {"model_type": "gpt_refact"}, architecture="GPTRefactForCausalLM", tensors={**old("ln_f", "rms"), **each({**norms("ln_1", "ln_2"),
      "attn.q.weight": (WIDTH, WIDTH), "attn.kv.weight": (2 * HEAD, WIDTH), "attn.c_proj.weight": (WIDTH, WIDTH), "mlp.gate_up_proj.weight": (512, WIDTH),
      "mlp.c_proj.weight": (WIDTH, 256)}, "transformer.h.")},
      # It writes the places of tokens of one vocabulary, which are known by their texts.
      unlike=tuple(f"tokenizer.ggml.{x}_token_id" for x in ("prefix", "suffix", "middle"))),
    F("jais", config=OLD | {"n_inner": INNER, "activation_function": "swiglu", "position_embedding_type": "alibi", "mup_embeddings_scale": 3.5, "mup_output_alpha": 2.0,
      "mup_width_scale": 0.25, "model_type": "jais"}, architecture="JAISLMHeadModel", tensors={**old("ln_f"), **each({**norms("ln_1", "ln_2", bias=True),
      "attn.c_attn.weight": (WIDTH, 3 * WIDTH), "attn.c_attn.bias": (3 * WIDTH,), "attn.c_proj.weight": (WIDTH, WIDTH), "attn.c_proj.bias": (WIDTH,),
      **{f"mlp.{x}.weight": (WIDTH, INNER) for x in ("c_fc", "c_fc2")}, **{f"mlp.{x}.bias": (INNER,) for x in ("c_fc", "c_fc2")},
      "mlp.c_proj.weight": (INNER, WIDTH), "mlp.c_proj.bias": (WIDTH,)}, "transformer.h.")},
      unlike=all_heads("jais")),
    F("deepseek", config=plain(head_dim=None, n_routed_experts=4, n_shared_experts=1, scoring_func="softmax", model_type="deepseek")
      | {x: MIXTURE[x] for x in ("num_experts_per_tok", "moe_intermediate_size", "first_k_dense_replace", "norm_topk_prob")},
      architecture="DeepseekForCausalLM", tensors=usual(WIDTH, **each(joined({**attention(), **norms()}, routed()))),
      # It does not say whether the weights of the chosen experts go up to one.
      unlike=("deepseek.expert_weights_norm",)),
    F("bailingmoe", config=plain(**MIXTURE | {"first_k_dense_replace": 0}, norm_head=False, model_type="bailing_moe"), architecture="BailingMoeForCausalLM", tensors={
      "model.word_embeddings.weight": (320, WIDTH), "model.norm.weight": (WIDTH,), "lm_head.weight": (320, WIDTH),
      **each(joined({**norms(), "attention.query_key_value.weight": ((HEADS + 2 * KV) * HEAD, WIDTH), "attention.dense.weight": (WIDTH, WIDTH)},
        routed()[1:] * 2))}),
    F("bailingmoe2", config=plain(**MIXTURE, rope_parameters=rope(partial_rotary_factor=0.5), routed_scaling_factor=2.5, n_group=2, topk_group=1, score_function="sigmoid",
      model_type="bailing_moe_v2"), architecture="BailingMoeV2ForCausalLM", tensors={
      "model.word_embeddings.weight": (320, WIDTH), "model.norm.weight": (WIDTH,), "lm_head.weight": (320, WIDTH),
      **each(joined({**norms(), "attention.query_key_value.weight": ((HEADS + 2 * KV) * HEAD, WIDTH), "attention.dense.weight": (WIDTH, WIDTH),
        "attention.query_layernorm.weight": (HEAD,), "attention.key_layernorm.weight": (HEAD,)}, routed("mlp.gate.expert_bias")))}),
    F("smallthinker", config=plain(intermediate_size=None, moe_ffn_hidden_size=32, moe_num_primary_experts=4, moe_num_active_primary_experts=2,
      moe_primary_router_apply_softmax=False, sliding_window_layout=[0, 1], sliding_window_size=16, rope_layout=[0, 1], model_type="smallthinker"),
      architecture="SmallThinkerForCausalLM", tensors=usual(WIDTH, **each({**attention(), **norms(), "block_sparse_moe.primary_router.weight": (4, WIDTH),
        **experts("block_sparse_moe.experts.", ("gate", "up", "down"))}))),
    F("arctic", config=plain(head_dim=None, num_local_experts=4, num_experts_per_tok=2, model_type="arctic_published", **ENDS), vocabulary="pieces", architecture="ArcticForCausalLM",
      tensors=usual(WIDTH, **each({**attention(), **norms("input_layernorm", "post_attention_layernorm", "residual_layernorm"),
        "residual_mlp.w1.weight": (WIDTH, WIDTH), "residual_mlp.w3.weight": (WIDTH, WIDTH), "residual_mlp.w2.weight": (WIDTH, WIDTH),
        "block_sparse_moe.gate.weight": (4, WIDTH), **experts("block_sparse_moe.experts.", ("w1", "w3", "w2"), INNER)}))),
    F("grok", config=plain(num_local_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, attn_output_multiplier=0.2, embedding_multiplier_scale=5.0,
      output_multiplier_scale=0.7, router_logit_softcapping=2.0, attn_logit_softcapping=4.0, final_logit_softcapping=3.0, model_type="grok_published", **ENDS), vocabulary="pieces",
      architecture="Grok1ForCausalLM", tensors=usual(WIDTH, **each({**attention(), **norms("pre_attn_norm", "post_attn_norm", "pre_moe_norm", "post_moe_norm"),
        **network("mlp."), "block_sparse_moe.gate.weight": (4, WIDTH), **experts("block_sparse_moe.experts.", ("w1", "w3", "w2"))}))),
    F("dbrx", config={"vocab_size": 320, "d_model": WIDTH, "n_layers": 2, "n_heads": HEADS, "max_seq_len": 256, "model_type": "dbrx_published",
      "attn_config": {"kv_n_heads": KV, "clip_qkv": 0.8, "rope_theta": 10000.0}, "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2}},
      architecture="DbrxForCausalLM", tensors={**old("norm_f", "rms"), **each({"norm_attn_norm.norm_1.weight": (WIDTH,), "norm_attn_norm.norm_2.weight": (WIDTH,),
        "norm_attn_norm.attn.Wqkv.weight": ((HEADS + 2 * KV) * HEAD, WIDTH), "norm_attn_norm.attn.out_proj.weight": (WIDTH, WIDTH),
        "ffn.router.layer.weight": (4, WIDTH), **{f"ffn.experts.mlp.{x}": (4 * 32, WIDTH) for x in ("w1", "v1", "w2")}}, "transformer.blocks.")},
      # Of it alone the converter rounds the router.
      unlike=("ffn_gate_inp.weight",)),
    F("maincoder", config=plain(model_type="maincoder"), architecture="MaincoderForCausalLM", tensors=usual(WIDTH, **each({**attention(), **norms(), **network("mlp."),
      "self_attn.q_norm.weight": (HEAD,), "self_attn.k_norm.weight": (HEAD,)}))),
    # Mixtures, and what came late.
    F("phimoe", "PhimoeForCausalLM", "PhimoeConfig", plain(head_dim=None, rms_norm_eps=1e-5, num_local_experts=4, num_experts_per_tok=2, attention_bias=True, lm_head_bias=True),
      "pieces", architecture="PhiMoEForCausalLM", patch={"original_max_position_embeddings": 512}),
    F("cohere2moe", "Cohere2MoeForCausalLM", "Cohere2MoeConfig", plain(rms_norm_eps=None, layer_norm_eps=1e-5, num_hidden_layers=4, rope_parameters=None, rope_theta=10000.0,
      num_experts=4, num_experts_per_tok=2, num_shared_experts=1, intermediate_size=32, prefix_dense_intermediate_size=96, sliding_window=16, pad_token_id=0, bos_token_id=0,
      eos_token_id=1, mlp_layer_types=["dense", "sparse", "sparse", "sparse"], expert_selection_fn="sigmoid")),
    F("exaone-moe", "ExaoneMoeForCausalLM", "ExaoneMoeConfig", plain(num_hidden_layers=4, num_experts=4, num_experts_per_tok=2, num_shared_experts=1, moe_intermediate_size=32,
      first_k_dense_replace=1, sliding_window=16, sliding_window_pattern=4, pad_token_id=0, bos_token_id=0, eos_token_id=1), patch={"scoring_func": "sigmoid"},
      # That no layer guesses further tokens, which others leave out.
      unlike=("exaone-moe.nextn_predict_layers",)),
    F("starcoder", "GPTBigCodeForCausalLM", "GPTBigCodeConfig", {"vocab_size": 320, "n_embd": WIDTH, "n_head": HEADS, "n_layer": 2, "n_positions": 256, "bos_token_id": 0,
      "eos_token_id": 1}),
    F("granite_swa", "GraniteSWAForCausalLM", "GraniteSWAConfig", plain(head_dim=None, num_hidden_layers=4, embedding_multiplier=12.0, logits_scaling=4.0,
      residual_multiplier=0.25, attention_multiplier=0.2, sliding_window=16, bos_token_id=0, eos_token_id=1)),
    F("granitemoeshared", "GraniteMoeSharedForCausalLM", "GraniteMoeSharedConfig", plain(head_dim=None, embedding_multiplier=12.0, logits_scaling=4.0, residual_multiplier=0.25,
      attention_multiplier=0.2, num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=48)),
    F("hy_v3", "HYV3ForCausalLM", "HYV3Config", plain(num_experts=4, num_experts_per_tok=2, num_shared_experts=1, moe_intermediate_size=32,
      mlp_layer_types=["dense", "sparse"])),
    F("jais2", "Jais2ForCausalLM", "Jais2Config", plain(rms_norm_eps=None, layer_norm_eps=1e-5, bos_token_id=0, eos_token_id=1)),
    F("laguna", "LagunaForCausalLM", "LagunaConfig", plain(num_hidden_layers=4, rope_parameters=KINDS, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
      shared_expert_intermediate_size=32, sliding_window=16, mlp_layer_types=["dense"] + ["sparse"] * 3)),
    F("mellum", "MellumForCausalLM", "MellumConfig", plain(num_hidden_layers=4, rope_parameters=KINDS, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, sliding_window=16),
      # It does not say whether the weights of the chosen experts go up to one.
      unlike=("mellum.expert_weights_norm",)),
    # As it was published: transformers of today stores experts in the other order, which the converter does not see.
    F("qwen3vlmoe", config={"model_type": "qwen3_vl_moe_published", "text_config": plain(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
      rope_parameters=rope(1e6, mrope_section=[3, 3, 2])), "vision_config": {"deepstack_visual_indexes": [0]}}, architecture="Qwen3VLMoeForConditionalGeneration",
      tensors={"model.language_model.embed_tokens.weight": (320, WIDTH), "model.language_model.norm.weight": (WIDTH,), "lm_head.weight": (320, WIDTH),
        **each({**attention(), **norms(), "self_attn.q_norm.weight": (HEAD,), "self_attn.k_norm.weight": (HEAD,), "mlp.gate.weight": (4, WIDTH),
          "mlp.experts.gate_up_proj": (4, WIDTH, 2 * 32), "mlp.experts.down_proj": (4, 32, WIDTH)}, "model.language_model.layers.")}),
]
