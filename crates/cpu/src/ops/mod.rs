//! Instructions: each file divides one kind of operation into tasks and computes them with the
//! kernels of the level. A LoRA update is no instruction of its own: `Graph::linear` adds the
//! products with its two matrices; only experts have one (`expert_lora`).
//!
//! # Safety
//! Every `unsafe fn run` has the contract of [`Instruction::run`](crate::step::Instruction::run):
//! its task number is valid, and earlier instructions have ended. A task reads values that earlier
//! instructions wrote, and writes only its own rows or columns, which no other task touches.

pub mod adapter_scale;
pub mod attention;
pub mod depth_attention;
pub mod dynamic_conv;
pub mod elementwise;
pub mod embed;
pub mod expert_lora;
pub mod expert_tiles;
pub mod group_norm;
pub mod hadamard;
pub mod linear;
pub mod moe;
pub mod ngram_embedding;
pub mod norm;
pub mod observe;
pub mod per_head_linear;
pub mod pooling;
pub mod recurrent;
pub mod rope;
mod routing;
pub mod streams;
pub mod strided_columns;
pub mod top_k_positions;
pub mod unfold;
