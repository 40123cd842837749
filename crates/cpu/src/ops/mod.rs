//! Instructions: each file divides one kind of operation into tasks and computes them with the kernels of the level.

pub mod attention;
pub mod choose;
pub mod dose;
pub mod dynamic_conv;
pub mod elementwise;
pub mod embed;
pub mod expert_changes;
pub mod expert_tiles;
pub mod grams;
pub mod group_norm;
pub mod heads;
pub mod linear;
pub mod moe;
pub mod norm;
pub mod observe;
pub mod pick;
pub mod pooling;
pub mod recall;
pub mod recurrent;
pub mod rope;
pub mod rotate;
mod routing;
pub mod streams;
pub mod unfold;
