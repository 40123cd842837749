//! A projector: the vision tower of a model, with a backend of its own.

use std::collections::HashMap;
use std::sync::Arc;

use puna_gguf::View;
use puna_graph::{Backend, Capacity, Graph, Plan, ProgramId, StepInput};
use puna_models::{NormalizedPicture, TowerInputError, TowerPicture, VisionTower};

use crate::error::EngineError;
use crate::media::MediumLayout;

/// A loaded vision tower. It makes rows of the text model's width from pictures.
pub struct Projector {
    tower: Arc<VisionTower>,
    backend: Box<dyn Backend>,
    /// Programs of the first and of the second graph.
    programs: HashMap<(bool, Capacity), ProgramId>,
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
        let tower = Arc::clone(&self.tower);
        self.run(tower.graph(), false, &tower.input(&pictures)?)?;
        if let Some(second) = tower.second_graph() {
            let input = tower.second_input(&pictures, self.backend.result())?;
            self.run(second, true, &input)?;
        }
        Ok(tower.rows(&pictures, self.backend.result())?)
    }

    /// Runs a step of one of the tower's graphs.
    fn run(
        &mut self,
        graph: &Graph,
        is_second: bool,
        input: &StepInput,
    ) -> Result<(), EngineError> {
        let capacity = Capacity::class(input.tokens.len(), input.outputs.len());
        let program = match self.programs.get(&(is_second, capacity)) {
            Some(program) => *program,
            None => {
                let program = self.backend.compile(Plan::new(graph.clone(), capacity))?;
                self.programs.insert((is_second, capacity), program);
                program
            }
        };
        self.backend.run(program, input);
        Ok(())
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
    Ok(MediumLayout {
        rows: tower.token_count(width, height)?,
        columns: tower.position_columns(width, height)?,
        sees_itself: tower.rows_see_each_other(),
    })
}
