//! Preprocessing of pictures as data: what each family makes of a picture before its tower reads
//! it, and the texts around the parts.

use std::num::NonZeroU32;

use puna_media::size_rules::{PixelRange, ceil_pad, longest_edge, smart_resize};
use puna_media::tiles::{self, PicturePart};
use puna_media::{Filter, Normalization, Picture, Size};

use super::patches::{NormalizedPicture, PatchLayout};
use crate::error::ModelError;
use crate::hparams::Keys;

/// Color of the padding of LLaVA: the mean of CLIP's pictures.
const CLIP_GRAY: [u8; 3] = [122, 116, 104];
/// Default of the largest number of tiles of InternVL.
const INTERNVL_TILES: u32 = 12;
/// Largest number of tiles in a row or a column that a file can ask for.
const MAX_TILES: u32 = 64;
/// Largest side of an encoder's picture in pixels.
const MAX_SIDE: usize = 8192;

/// Preprocessing of a family.
struct Family {
    /// Names of the projector type.
    names: &'static [&'static str],
    rule: Rule,
    filter: Filter,
    texts: Texts,
}

/// Size and parts of the pictures of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// One square, padded with a color.
    Square([u8; 3]),
    /// Sides near those of the picture, with a range of tokens.
    Tokens(u32, u32),
    /// A longer side of `preproc_image_size` pixels.
    LongestEdge,
    /// Tiles of a longer side of `preproc_image_size` pixels.
    TilesOfEdge,
    /// Tiles in one of the sizes in `image_grid_pinpoints`, else one square with LLaVA's color.
    Pinpoints,
    /// From `preproc_min_tiles` to `preproc_max_tiles` tiles.
    TileCount,
    /// Up to three times three tiles.
    ThreeByThree,
    /// The whole picture and up to nine tiles, all with the area of a square.
    TilesOfArea,
    /// Tiles of 512 pixels and the whole picture, if the picture has more than twice the pixels of
    /// this range of tokens.
    TilesOfAspect(u32, u32),
}

/// Texts around the parts of a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Texts {
    /// A text in front of all parts, and one behind them.
    Around(&'static str, &'static str),
    /// A text with row and column in front of each tile, and line breaks between rows.
    Numbered,
    /// The whole picture between `<image>` tags, then each tile between `<slice>` tags, and line
    /// breaks between rows.
    Slices,
    /// As [`Texts::Slices`], with one pair of `<slice>` tags around the tiles, and `<image>` tags
    /// around each.
    ImagesInSlice,
    /// A text in front of all parts, and one behind them. With tiles, a text with row and column is
    /// in front of each, and a text in front of the whole picture.
    Thumbnail(&'static str, &'static str),
}

/// All families.
const FAMILIES: [Family; 13] = [
    Family {
        names: &["gemma3"],
        rule: Rule::Square([0; 3]),
        filter: Filter::Bilinear,
        texts: Texts::Around("<start_of_image>", "<end_of_image>"),
    },
    Family {
        names: &["gemma4v", "gemma4uv"],
        rule: Rule::Tokens(70, 1120),
        filter: Filter::Bicubic,
        texts: Texts::Around("<|image>", "<image|>"),
    },
    Family {
        names: &["glm4v"],
        rule: Rule::Tokens(8, 4096),
        filter: Filter::Bicubic,
        texts: Texts::Around("<|begin_of_image|>", "<|end_of_image|>"),
    },
    Family {
        names: &["idefics3"],
        rule: Rule::TilesOfEdge,
        filter: Filter::Lanczos,
        texts: Texts::Numbered,
    },
    Family {
        names: &["internvl"],
        rule: Rule::TileCount,
        filter: Filter::Bicubic,
        texts: Texts::Around("<img>", "</img>"),
    },
    Family {
        names: &["lfm2"],
        rule: Rule::TilesOfAspect(64, 256),
        filter: Filter::Bilinear,
        texts: Texts::Thumbnail("<|image_start|>", "<|image_end|>"),
    },
    Family {
        names: &["lightonocr"],
        rule: Rule::LongestEdge,
        filter: Filter::Bicubic,
        texts: Texts::Around("<|im_start|>", "<|im_end|>"),
    },
    Family {
        names: &["llama4"],
        rule: Rule::ThreeByThree,
        filter: Filter::Bicubic,
        texts: Texts::Around("<|image_start|>", "<|image_end|>"),
    },
    Family {
        names: &["mlp"],
        rule: Rule::Pinpoints,
        filter: Filter::Bicubic,
        texts: Texts::Around("", ""),
    },
    Family {
        names: &["minicpmv4_6", "resampler"],
        rule: Rule::TilesOfArea,
        filter: Filter::Bicubic,
        texts: Texts::Slices,
    },
    Family {
        names: &["paddleocr"],
        rule: Rule::Tokens(8, 4096),
        filter: Filter::Bicubic,
        texts: Texts::Around("<|IMAGE_START|>", "<|IMAGE_END|>"),
    },
    Family {
        names: &["pixtral"],
        rule: Rule::Tokens(8, 1024),
        filter: Filter::Bicubic,
        texts: Texts::Around("", "[IMG_END]"),
    },
    Family {
        names: &["qwen2vl_merger", "qwen2.5vl_merger", "qwen3vl_merger"],
        rule: Rule::Tokens(8, 4096),
        filter: Filter::Bicubic,
        texts: Texts::Around("<|vision_start|>", "<|vision_end|>"),
    },
];

/// A part of a prompt that a picture becomes.
#[derive(Debug, Clone, PartialEq)]
pub enum PromptPart {
    /// Text for the tokenizer, with control tokens.
    Text(&'static str),
    /// Texts of single tokens. A vocabulary may lack some, which are left out.
    Tokens(Vec<String>),
    /// A picture for the tower.
    Picture(TowerPicture),
}

/// A picture with normalized pixels.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TowerPicture {
    /// Width in pixels.
    pub width: usize,
    /// Height in pixels.
    pub height: usize,
    /// Planes red, green and blue, each `[height, width]`.
    pub planes: Vec<f32>,
}

impl TowerPicture {
    /// The picture for [`super::VisionTower::input`].
    pub fn normalized(&self) -> NormalizedPicture<'_> {
        NormalizedPicture { width: self.width, height: self.height, planes: &self.planes }
    }
}

/// Preprocessing of a projector file.
#[derive(Debug)]
pub(super) struct Preprocessing {
    rule: SizeRule,
    filter: Filter,
    normalization: Normalization,
    texts: Texts,
}

/// A [`Rule`] with the sizes of a file.
#[derive(Debug)]
enum SizeRule {
    Square { side: NonZeroU32, padding: [u8; 3] },
    Smart { alignment: NonZeroU32, range: PixelRange },
    LongestEdge { edge: NonZeroU32, alignment: NonZeroU32 },
    TilesOfEdge { edge: NonZeroU32, side: NonZeroU32 },
    TilesOf { side: NonZeroU32, sizes: Vec<Size> },
    TilesOfArea { side: NonZeroU32, alignment: NonZeroU32 },
    TilesOfAspect { alignment: NonZeroU32, range: PixelRange },
}

impl Preprocessing {
    /// Reads the sizes of a family from its file.
    pub fn read(keys: &Keys<'_>, name: &str, layout: &PatchLayout) -> Result<Self, ModelError> {
        let family = FAMILIES.iter().find(|family| family.names.contains(&name));
        let family = family.ok_or_else(|| ModelError::KeyValue {
            key: keys.name("projector_type"),
            value: name.to_owned(),
            reason: "pictures of this projector type are not supported",
        })?;
        let rule = SizeRule::read(keys, family.rule, layout)?;
        let channels = |key: &str, default: f32| -> Result<[f32; 3], ModelError> {
            let values = keys.meta().f32s(&keys.name(key))?;
            Ok(values.and_then(|values| values.try_into().ok()).unwrap_or([default; 3]))
        };
        let mean = channels("vision.image_mean", 0.5)?;
        let std = channels("vision.image_std", 0.5)?;
        if std.iter().any(|std| !std.is_normal()) || mean.iter().any(|mean| !mean.is_finite()) {
            let reason = "must be numbers, and not zero";
            let (key, value) = (keys.name("vision.image_std"), format!("{std:?}"));
            return Err(ModelError::KeyValue { key, value, reason });
        }
        let normalization = Normalization { mean, std };
        // MiniCPM-Llama3-V 2.5.
        let is_2_5 = name == "resampler" && keys.opt_count("minicpmv_version")? == Some(2);
        let texts = if is_2_5 { Texts::ImagesInSlice } else { family.texts };
        Ok(Self { rule, filter: family.filter, normalization, texts })
    }

    /// Parts of a prompt for a picture.
    pub fn apply(&self, picture: &Picture) -> Vec<PromptPart> {
        let parts = self.rule.apply(picture, self.filter);
        let count = parts.len();
        let mut prompt = Vec::new();
        if let Texts::Around(begin, _) | Texts::Thumbnail(begin, _) = self.texts {
            prompt.push(PromptPart::Text(begin));
        }
        for (number, (part, picture)) in parts.into_iter().enumerate() {
            let [before, after] = self.texts.around(part, [number, count]);
            let planes = self.normalization.apply(&picture);
            let (width, height) = (picture.width() as usize, picture.height() as usize);
            prompt.push(PromptPart::Tokens(before));
            prompt.push(PromptPart::Picture(TowerPicture { width, height, planes }));
            prompt.push(PromptPart::Tokens(after));
        }
        if let Texts::Around(_, end) | Texts::Thumbnail(_, end) = self.texts {
            prompt.push(PromptPart::Text(end));
        }
        prompt
    }
}

impl Texts {
    /// Tokens in front of a part and behind it, by its number among all parts.
    fn around(self, part: PicturePart, [number, count]: [usize; 2]) -> [Vec<String>; 2] {
        let tokens = |tokens: &[&str]| tokens.iter().map(|&token| token.to_owned()).collect();
        let (is_first_tile, is_last) = (number == 1, number + 1 == count);
        let ends_row =
            matches!(part, PicturePart::Tile { column, columns, .. } if column == columns);
        match (self, part) {
            (Texts::Around(..), _) => [Vec::new(), Vec::new()],
            (Texts::Thumbnail(..), PicturePart::Whole) if count == 1 => [Vec::new(), Vec::new()],
            (Texts::Thumbnail(..), PicturePart::Whole) => {
                [tokens(&["<|img_thumbnail|>"]), Vec::new()]
            }
            (Texts::Thumbnail(..), PicturePart::Tile { row, column, .. }) => {
                [vec![format!("<|img_row_{row}_col_{column}|>")], Vec::new()]
            }
            (Texts::Numbered, PicturePart::Whole) => {
                [tokens(&[IDEFICS3_MARK, "<global-img>"]), tokens(&[IDEFICS3_MARK])]
            }
            (Texts::Numbered, PicturePart::Tile { row, column, .. }) => {
                let name = format!("<row_{row}_col_{column}>");
                let before = vec![IDEFICS3_MARK.to_owned(), name];
                let is_last_row = number + 2 == count;
                let line_break = if is_last_row { "\n\n" } else { "\n" };
                [before, if ends_row { tokens(&[line_break]) } else { Vec::new() }]
            }
            (_, PicturePart::Whole) => [tokens(&["<image>"]), tokens(&["</image>"])],
            (Texts::Slices, PicturePart::Tile { .. }) => {
                let after: &[&str] =
                    if ends_row && !is_last { &["</slice>", "\n"] } else { &["</slice>"] };
                [tokens(&["<slice>"]), tokens(after)]
            }
            (Texts::ImagesInSlice, PicturePart::Tile { .. }) => {
                let before: &[&str] =
                    if is_first_tile { &["<slice>", "<image>"] } else { &["<image>"] };
                let after: &[&str] = match (is_last, ends_row) {
                    (true, _) => &["</image>", "</slice>"],
                    (false, true) => &["</image>", "\n"],
                    (false, false) => &["</image>"],
                };
                [tokens(before), tokens(after)]
            }
        }
    }
}

/// The file's range of pixels, or the one of a range of tokens.
fn pixel_range(
    keys: &Keys<'_>,
    [min, max]: [u32; 2],
    alignment: NonZeroU32,
) -> Result<PixelRange, ModelError> {
    let tokens = PixelRange::of_tokens(min, max, alignment);
    let pixels = |key: &str, default: u64| -> Result<u64, ModelError> {
        Ok(keys.opt_count(key)?.map_or(default, |pixels| pixels as u64))
    };
    Ok(PixelRange {
        min: pixels("vision.image_min_pixels", tokens.min)?,
        max: pixels("vision.image_max_pixels", tokens.max)?.max(1),
    })
}

/// Token of Idefics 3 around each part.
const IDEFICS3_MARK: &str = "<fake_token_around_image>";

impl SizeRule {
    fn read(keys: &Keys<'_>, rule: Rule, layout: &PatchLayout) -> Result<Self, ModelError> {
        let side = |key: &str, value: usize| {
            let side = u32::try_from(value).ok().and_then(NonZeroU32::new);
            side.filter(|side| side.get() as usize <= MAX_SIDE).ok_or_else(|| {
                let (key, value) = (keys.name(key), value.to_string());
                ModelError::KeyValue { key, value, reason: "must be 1 to 8192 pixels" }
            })
        };
        let alignment = side("vision.patch_size", layout.patch.saturating_mul(layout.merge))?;
        let image_size = || side("vision.image_size", keys.count("vision.image_size")?);
        let edge = || {
            let key = "vision.preproc_image_size";
            keys.opt_count(key)?.map(|edge| side(key, edge)).transpose()
        };
        Ok(match rule {
            Rule::Square(padding) => Self::Square { side: image_size()?, padding },
            Rule::Tokens(min, max) => {
                Self::Smart { alignment, range: pixel_range(keys, [min, max], alignment)? }
            }
            Rule::TilesOfAspect(min, max) => {
                Self::TilesOfAspect { alignment, range: pixel_range(keys, [min, max], alignment)? }
            }
            Rule::LongestEdge => {
                let edge = edge()?.map_or_else(image_size, Ok)?;
                Self::LongestEdge { edge, alignment }
            }
            Rule::TilesOfEdge => match edge()? {
                Some(edge) => Self::TilesOfEdge { edge, side: image_size()? },
                None => Self::Square { side: image_size()?, padding: [0; 3] },
            },
            Rule::Pinpoints => {
                let list = keys.meta().u32s(&keys.name("vision.image_grid_pinpoints"))?;
                let (side, list) = (image_size()?, list.unwrap_or_default());
                let sizes = list.chunks_exact(2).map(|size| Size::new(size[0], size[1]));
                let max = side.get().saturating_mul(MAX_TILES);
                let fits = |size: &Size| {
                    (1..=max).contains(&size.width) && (1..=max).contains(&size.height)
                };
                let sizes: Vec<Size> = sizes.filter(fits).collect();
                match sizes.is_empty() {
                    true => Self::Square { side, padding: CLIP_GRAY },
                    false => Self::TilesOf { side, sizes },
                }
            }
            Rule::TileCount => {
                let tiles = |key: &str, default: u32| -> Result<u32, ModelError> {
                    let count = keys.opt_count(key)?.map_or(default, |count| count as u32);
                    Ok(count.clamp(1, MAX_TILES))
                };
                let min = tiles("vision.preproc_min_tiles", 1)?;
                let max = tiles("vision.preproc_max_tiles", INTERNVL_TILES)?.max(min);
                let fits = |columns: u32, rows: u32| (min..=max).contains(&(columns * rows));
                let side = image_size()?;
                Self::TilesOf { side, sizes: tiles::grid_sizes(side, max, fits).collect() }
            }
            Rule::TilesOfArea => Self::TilesOfArea { side: image_size()?, alignment },
            Rule::ThreeByThree => {
                let side = image_size()?;
                let sizes = tiles::grid_sizes(side, 3, |columns, rows| columns * rows > 1);
                Self::TilesOf { side, sizes: sizes.collect() }
            }
        })
    }

    fn apply(&self, picture: &Picture, filter: Filter) -> Vec<(PicturePart, Picture)> {
        let padded = |size: Size, color: [u8; 3]| {
            let placed = ceil_pad(picture.size(), size).apply(picture, filter, color);
            vec![(PicturePart::Whole, placed)]
        };
        match *self {
            Self::Square { side, padding } => padded(Size::square(side.get()), padding),
            Self::Smart { alignment, range } => {
                padded(smart_resize(picture.size(), alignment, range), [0; 3])
            }
            Self::LongestEdge { edge, alignment } => {
                padded(longest_edge(picture.size(), edge, alignment), [0; 3])
            }
            Self::TilesOfEdge { edge, side } => {
                tiles::tiles_of_longest_edge(picture, edge, side, filter)
            }
            Self::TilesOfArea { side, alignment } => {
                tiles::whole_and_tiles_of_area(picture, side, alignment, filter)
            }
            Self::TilesOfAspect { alignment, range } => {
                tiles::tiles_of_aspect(picture, alignment, range, filter)
            }
            Self::TilesOf { side, ref sizes } => {
                tiles::tiles_and_whole(picture, side, filter, sizes.iter().copied())
            }
        }
    }
}
