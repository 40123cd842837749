//! A projector: the vision tower of a model, with a backend of its own.

use std::collections::HashMap;
use std::sync::Arc;

use puna_gguf::View;
use puna_graph::{Backend, Capacity, Plan, ProgramId};
use puna_models::{NormalizedPicture, TowerInputError, TowerPicture, VisionTower};

use crate::error::EngineError;
use crate::media::MediumLayout;

/// A loaded vision tower. It makes rows of the text model's width from pictures.
pub struct Projector {
    tower: Arc<VisionTower>,
    backend: Box<dyn Backend>,
    programs: HashMap<Capacity, ProgramId>,
}

impl Projector {
    /// Loads the tower of a projector file on a backend.
    ///
    /// # Errors
    /// The file has no known tower, or the backend cannot run it.
    pub fn open(view: &View, mut backend: Box<dyn Backend>) -> Result<Self, EngineError> {
        let tower = VisionTower::load(view)?;
        backend.load_weights(tower.weights().to_vec(), tower.ropes().to_vec())?;
        Ok(Self { tower: Arc::new(tower), backend, programs: HashMap::new() })
    }

    /// The tower.
    pub fn tower(&self) -> &Arc<VisionTower> {
        &self.tower
    }

    /// Bytes of the weights, mapped from the file.
    pub fn weight_bytes(&self) -> u64 {
        self.tower.weights().iter().map(|weight| weight.data.size() as u64).sum()
    }

    /// Bytes of intermediate results.
    pub fn scratch_bytes(&self) -> u64 {
        self.backend.scratch_bytes() as u64
    }

    /// Rows of some pictures, which one step computes.
    ///
    /// # Errors
    /// A picture does not fit the tower.
    pub fn encode(&mut self, pictures: &[&TowerPicture]) -> Result<Vec<Vec<f32>>, EngineError> {
        let pictures: Vec<NormalizedPicture<'_>> =
            pictures.iter().map(|picture| picture.normalized()).collect();
        let input = self.tower.input(&pictures)?;
        let capacity = Capacity::class(input.tokens.len(), input.outputs.len());
        let program = match self.programs.get(&capacity) {
            Some(program) => *program,
            None => {
                let plan = Plan::new(self.tower.graph().clone(), capacity);
                let program = self.backend.compile(plan)?;
                self.programs.insert(capacity, program);
                program
            }
        };
        self.backend.run(program, &input);
        Ok(self.tower.rows(&pictures, self.backend.result())?)
    }
}

/// Layout of a picture of this size in the text model of a tower.
///
/// # Errors
/// The tower does not take pictures of this size.
pub fn picture_layout(
    tower: &VisionTower,
    width: usize,
    height: usize,
) -> Result<MediumLayout, TowerInputError> {
    let [_, columns] = tower.token_grid(width, height)?;
    Ok(MediumLayout {
        rows: tower.token_count(width, height)?,
        columns: Some(columns),
        sees_itself: tower.rows_see_each_other(),
    })
}
