//! Vision towers: from the patches of a picture to rows of the text model's width.
//!
//! A tower is a graph of its own with the weights of a projector file (`general.architecture` =
//! `clip`). [`VisionTower::load`] reads the file; [`VisionTower::input`] makes the input of a step
//! from normalized pixels; a backend runs [`VisionTower::graph`]; [`VisionTower::rows`] completes
//! the result. Each family has a file in this folder, which says what it is made of.

mod encoder;
mod gemma3;
mod gemma4;
mod glm4v;
mod idefics3;
mod internvl;
mod lfm2;
mod llama4;
mod llava;
mod minicpm46;
mod paddleocr;
mod patches;
mod pixtral;
mod position_table;
mod preprocess;
mod qwen_vl;
mod resampler;
mod rope;

use puna_gguf::View;
use puna_graph::{Graph, Rope, StepInput, Weight};
use puna_media::Picture;

use crate::error::ModelError;
use crate::hparams::Keys;
use crate::weights::Weights;
use patches::{ClassToken, PatchLayout, merged_input};
pub use patches::{NormalizedPicture, TowerInputError};
use position_table::PositionTable;
use preprocess::Preprocessing;
pub use preprocess::{PromptPart, TowerPicture};
use resampler::Queries;

/// `general.architecture` of projector files.
const PROJECTOR_ARCHITECTURE: &str = "clip";

/// A family of projectors.
struct Entry {
    /// `clip.projector_type` of the file.
    name: &'static str,
    load: fn(&Keys<'_>, &mut Weights<'_>) -> Result<LoadedTower, ModelError>,
}

/// All families.
const TOWERS: [Entry; 17] = [
    Entry { name: "gemma3", load: gemma3::load },
    Entry { name: "gemma4uv", load: gemma4::load_unified },
    Entry { name: "gemma4v", load: gemma4::load },
    Entry { name: "glm4v", load: glm4v::load },
    Entry { name: "idefics3", load: idefics3::load },
    Entry { name: "internvl", load: internvl::load },
    Entry { name: "lfm2", load: lfm2::load },
    Entry { name: "lightonocr", load: pixtral::load },
    Entry { name: "llama4", load: llama4::load },
    Entry { name: "minicpmv4_6", load: minicpm46::load },
    Entry { name: "mlp", load: llava::load },
    Entry { name: "paddleocr", load: paddleocr::load },
    Entry { name: "pixtral", load: pixtral::load },
    Entry { name: "qwen2.5vl_merger", load: qwen_vl::load_2_5 },
    Entry { name: "qwen2vl_merger", load: qwen_vl::load_2 },
    Entry { name: "qwen3vl_merger", load: qwen_vl::load_3 },
    Entry { name: "resampler", load: resampler::load },
];

/// What a family makes of a file.
struct LoadedTower {
    /// Its first input is the patches. Its second one is the rows of `positions`, if there are any.
    graph: Graph,
    layout: PatchLayout,
    positions: Option<PositionTable>,
    /// Row of the result behind each row of tokens of a picture but the last.
    row_end: Option<Vec<f32>>,
    /// Rows of the last input of a tower with a resampler.
    queries: Option<Queries>,
    /// Blocks behind a merger in the middle of the tower. The only input is the result of `graph`.
    second: Option<Graph>,
}

impl LoadedTower {
    /// A tower of one graph without further rows.
    fn new(graph: Graph, layout: PatchLayout, positions: Option<PositionTable>) -> Self {
        Self { graph, layout, positions, row_end: None, queries: None, second: None }
    }
}

/// A vision tower, ready for a backend.
pub struct VisionTower {
    /// Name of the family.
    name: &'static str,
    tower: LoadedTower,
    preprocessing: Preprocessing,
    weights: Vec<Weight>,
    ropes: Vec<Rope>,
    /// Columns of the result.
    width: usize,
}

impl VisionTower {
    /// Reads the keys and finds the tensors of a projector file; no weights are read except small
    /// ones that become constants.
    ///
    /// # Errors
    /// The projector type is unknown, or a key or tensor is missing or does not fit.
    pub fn load(view: &View) -> Result<Self, ModelError> {
        let architecture = view.metadata().architecture()?;
        if architecture != PROJECTOR_ARCHITECTURE {
            return Err(ModelError::KeyValue {
                key: "general.architecture".into(),
                value: architecture.to_owned(),
                reason: "a projector file has clip",
            });
        }
        let keys = Keys::new(view.metadata())?;
        let name = match keys.opt_str("projector_type")? {
            Some(name) => name,
            None => keys.opt_str("vision.projector_type")?.unwrap_or("mlp"),
        };
        let entry = TOWERS.iter().find(|entry| entry.name == name);
        let entry = entry.ok_or_else(|| ModelError::KeyValue {
            key: keys.name("projector_type"),
            value: name.to_owned(),
            reason: "pictures of this projector type are not supported",
        })?;
        let mut weights = Weights::new(view);
        let tower = (entry.load)(&keys, &mut weights)?;
        let last = tower.second.as_ref().unwrap_or(&tower.graph);
        let width = last.result().map_or(0, |result| last.value(result).cols);
        let preprocessing = Preprocessing::read(&keys, name, &tower.layout)?;
        Ok(Self {
            name: entry.name,
            tower,
            preprocessing,
            weights: weights.tensors,
            ropes: weights.ropes,
            width,
        })
    }

    /// Tensors in the order of the graph's ids.
    pub fn weights(&self) -> &[Weight] {
        &self.weights
    }

    /// Rotary tables in the order of the graph's ids.
    pub fn ropes(&self) -> &[Rope] {
        &self.ropes
    }

    /// Operations of a step. Its rows are patches, its output rows tokens.
    pub fn graph(&self) -> &Graph {
        &self.tower.graph
    }

    /// Operations of a second step, if the tower merges patches between two blocks. It takes the
    /// result of the first step ([`Self::second_input`]).
    pub fn second_graph(&self) -> Option<&Graph> {
        self.tower.second.as_ref()
    }

    /// Columns of the rows of a picture.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Parts of a prompt for a picture: texts, and the pictures that the tower reads.
    pub fn prompt_parts(&self, picture: &Picture) -> Vec<PromptPart> {
        self.preprocessing.apply(picture)
    }

    /// Columns of the tokens of a picture of this size in pixels, if the tokens have positions of a
    /// grid in text models with M-RoPE.
    ///
    /// # Errors
    /// The size is not a multiple of the size of a token.
    pub fn position_columns(
        &self,
        width: usize,
        height: usize,
    ) -> Result<Option<usize>, TowerInputError> {
        let [_, columns] = self.tower.layout.tokens(width, height)?;
        Ok((self.name != "minicpmv4_6").then_some(columns))
    }

    /// Whether the rows of a picture see each other in the text model. The text models of the
    /// smaller Gemma 4 stay causal.
    pub fn rows_see_each_other(&self) -> bool {
        match self.name {
            "gemma3" | "gemma4uv" => true,
            "gemma4v" => ![1536, 2560].contains(&self.width),
            _ => false,
        }
    }

    /// Number of rows that a picture of this size in pixels has in the text model.
    ///
    /// # Errors
    /// The size is not a multiple of the size of a token.
    pub fn token_count(&self, width: usize, height: usize) -> Result<usize, TowerInputError> {
        let [rows, columns] = self.tower.layout.tokens(width, height)?;
        if self.tower.queries.is_some() {
            return Ok(self.tower.layout.queries);
        }
        let ends = if self.tower.row_end.is_some() { rows - 1 } else { 0 };
        Ok(rows * columns + ends)
    }

    /// The input of a step for some pictures.
    ///
    /// # Errors
    /// The tower does not take pictures of this size, or the pixels are not as many as the size
    /// says.
    pub fn input(&self, pictures: &[NormalizedPicture<'_>]) -> Result<StepInput, TowerInputError> {
        let mut input = StepInput::default();
        let positions = self.tower.positions.as_ref();
        let queries = self.tower.queries.as_ref();
        let inputs = 1 + usize::from(positions.is_some()) + usize::from(queries.is_some());
        input.inputs.resize_with(inputs, Vec::new);
        for picture in pictures {
            self.tower.layout.add(picture, &mut input)?;
            if let Some(table) = positions {
                table.add_rows(&self.tower.layout, picture, &mut input.inputs[1])?;
            }
            if let Some(queries) = queries {
                queries.add_rows(&self.tower.layout, picture, &mut input.inputs[inputs - 1])?;
            }
        }
        Ok(input)
    }

    /// The input of the second step ([`Self::second_graph`]) for the pictures of the first step,
    /// from its result.
    ///
    /// # Errors
    /// Those of [`VisionTower::input`].
    pub fn second_input(
        &self,
        pictures: &[NormalizedPicture<'_>],
        result: &[f32],
    ) -> Result<StepInput, TowerInputError> {
        let layout = &self.tower.layout;
        let merged = layout.patches_per_token() / layout.inner_merge.pow(2);
        let count = |picture: &NormalizedPicture<'_>| {
            let [rows, columns] = layout.tokens(picture.width, picture.height)?;
            Ok(rows * columns * merged)
        };
        let counts = pictures.iter().map(count).collect::<Result<Vec<_>, _>>()?;
        Ok(merged_input(&counts, merged, result))
    }

    /// Rows of the pictures of a step, from the result of the last step.
    ///
    /// # Errors
    /// Those of [`VisionTower::input`].
    pub fn rows(
        &self,
        pictures: &[NormalizedPicture<'_>],
        result: &[f32],
    ) -> Result<Vec<Vec<f32>>, TowerInputError> {
        let mut first = 0;
        let mut all = Vec::new();
        for picture in pictures {
            let [rows, columns] = self.tower.layout.tokens(picture.width, picture.height)?;
            if self.tower.queries.is_some() {
                let end = first + self.tower.layout.queries;
                all.push(result[first * self.width..end * self.width].to_vec());
                first = end;
                continue;
            }
            let mut places = vec![0; rows * columns];
            let order = self.tower.layout.token_order([rows, columns]);
            order.enumerate().for_each(|(at, [y, x])| places[y * columns + x] = first + at);
            first += rows * columns;
            let mut out = Vec::new();
            for (row, places) in places.chunks_exact(columns).enumerate() {
                for place in places {
                    out.extend_from_slice(&result[place * self.width..][..self.width]);
                }
                if row + 1 < rows {
                    out.extend(self.tower.row_end.iter().flatten());
                }
            }
            all.push(out);
        }
        Ok(all)
    }
}

/// Layout of a family without class token.
fn grid_layout(keys: &Keys<'_>, patches_per_side: usize) -> Result<PatchLayout, ModelError> {
    PatchLayout::new(keys, patches_per_side, ClassToken::None)
}
