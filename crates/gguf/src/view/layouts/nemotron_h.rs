//! Nemotron H with experts, and Nemotron H Omni, as published by Ollama: other names for the latent
//! projections of experts, and image and audio encoders in the same file.

use crate::view::rules::{Condition::*, PublishedLayout, Rule::*};

pub(super) const NEMOTRON_H_MOE: PublishedLayout = PublishedLayout {
    name: "nemotron_h_moe as published by Ollama",
    architecture: "nemotron_h_moe",
    markers: &[
        TensorPrefix("blk.0.ffn_latent_in"),
        TensorPrefix("blk.1.ffn_latent_in"),
        TensorPrefix("mtp."),
    ],
    rules: LATENT,
};

pub(super) const NEMOTRON_H_OMNI_MOE: PublishedLayout = PublishedLayout {
    name: "nemotron_h_omni as published by Ollama",
    architecture: "nemotron_h_omni",
    markers: &[All(&[
        ENCODERS,
        Any(&[
            KeyAtLeast("nemotron_h_omni.expert_count", 1),
            KeyAtLeast("nemotron_h_omni.expert_used_count", 1),
        ]),
    ])],
    rules: &[
        Architecture("nemotron_h_moe"),
        KeyPrefix("nemotron_h_omni", "nemotron_h_moe"),
        Hide("a."),
        Hide("v."),
        Hide("mm."),
        If(Always, LATENT),
    ],
};

pub(super) const NEMOTRON_H_OMNI: PublishedLayout = PublishedLayout {
    name: "nemotron_h_omni as published by Ollama",
    architecture: "nemotron_h_omni",
    markers: &[ENCODERS],
    rules: &[
        Architecture("nemotron_h"),
        KeyPrefix("nemotron_h_omni", "nemotron_h"),
        Hide("a."),
        Hide("v."),
        Hide("mm."),
    ],
};

const ENCODERS: crate::view::rules::Condition =
    Any(&[TensorPrefix("v."), TensorPrefix("a."), TensorPrefix("mm.")]);

const LATENT: &[crate::view::rules::Rule] = &[
    EachBlock(&[DefaultDim("nemotron_h_moe.moe_latent_size", "blk.{b}.ffn_latent_in.weight", 1)]),
    Replace(".ffn_latent_in", ".ffn_latent_down"),
    Replace(".ffn_latent_out", ".ffn_latent_up"),
    Hide("mtp."),
];
