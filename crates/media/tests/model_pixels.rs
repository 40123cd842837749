//! Size rules, resampling, padding and normalization make the tensors that vision encoders get.
//!
//! `model-pixels.json` has, for 19 entries of 15 model families, the rules of the family and the
//! hashes of the recorded tensors. They are equal bit for bit.

use std::num::NonZeroU32;

use puna_media::size_rules::{PixelRange, ceil_pad, longest_edge, smart_resize, stretch};
use puna_media::{Normalization, Picture, Size};
use serde::Deserialize;

use crate::common::{draw, read_image, sha256};
use crate::resize::filter;

#[derive(Deserialize)]
struct Tensors {
    cases: Vec<Tensor>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tensor {
    entry: String,
    formula: String,
    size: (u32, u32),
    salt: i64,
    steps: Vec<Step>,
    mean: [f32; 3],
    std: [f32; 3],
    result: (u32, u32),
    sha256: String,
}

/// Resizing by a rule, padding, and the cut of a tile.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    target: Target,
    filter: String,
    place: String,
    padding: [u8; 3],
    /// Left, top, width and height.
    crop: Option<[u32; 4]>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Target {
    Fixed(u32, u32),
    SmartResize { alignment: NonZeroU32, min: u64, max: u64 },
    LongestEdge { edge: NonZeroU32, alignment: NonZeroU32 },
}

impl Target {
    fn size(&self, picture: Size) -> Size {
        match *self {
            Self::Fixed(width, height) => Size::new(width, height),
            Self::SmartResize { alignment, min, max } => {
                smart_resize(picture, alignment, PixelRange { min, max })
            }
            Self::LongestEdge { edge, alignment } => longest_edge(picture, edge, alignment),
        }
    }
}

impl Step {
    fn apply(&self, picture: &Picture) -> Picture {
        let target = self.target.size(picture.size());
        let placement = match self.place.as_str() {
            "stretch" => stretch(target),
            "ceil_pad" => ceil_pad(picture.size(), target),
            other => panic!("unknown placement {other}"),
        };
        let placed = placement.apply(picture, filter(&self.filter), self.padding);
        match self.crop {
            Some([left, top, width, height]) => {
                placed.crop(left, top, Size::new(width, height)).unwrap()
            }
            None => placed,
        }
    }
}

#[test]
fn every_tensor_is_the_recorded_one() {
    let tensors: Tensors = serde_json::from_slice(&read_image("model-pixels.json")).unwrap();
    assert_eq!(tensors.cases.len(), 60);
    for tensor in &tensors.cases {
        let Tensor { entry, size, result, .. } = tensor;
        let drawn = draw(&tensor.formula, size.0, size.1, tensor.salt);
        let picture = tensor.steps.iter().fold(drawn, |picture, step| step.apply(&picture));
        assert_eq!((picture.width(), picture.height()), *result, "{entry} {size:?}");
        let values = Normalization { mean: tensor.mean, std: tensor.std }.apply(&picture);
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(sha256(&bytes), tensor.sha256, "{entry} {size:?}");
    }
}
