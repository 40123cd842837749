//! Instructions: how each operation is cut into tasks and done with the level's kernels.

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
