//! Prepares the texts of embedding requests for the engine.

use puna_engine::EngineError;

use super::preparer::{Preparer, to_api_error};
use super::task_handle::{TaskHandle, check_connected};
use crate::canonical::{ApiError, EmbedResult, EmbedTask, EmbedText, Event};

impl Preparer {
    /// Tokenizes the texts of a task and starts their embedding.
    pub(super) fn embed(&self, handle: TaskHandle, task: EmbedTask) -> Result<(), ApiError> {
        if !self.model.model_info().embeds {
            return Err(ApiError::bad_request(match self.model.model_info().pair_format {
                Some(_) => "this model is a reranker and does not support embeddings",
                None => "this model does not support embeddings",
            }));
        }
        let (mut inputs, mut summary) =
            (Vec::with_capacity(task.inputs.len()), EmbedResult::default());
        for (i, text) in task.inputs.iter().enumerate() {
            check_connected(&handle)?;
            let (tokens, cut) = self.embed_tokens(&handle, text, &task)?;
            summary.tokens += tokens.len() as u64;
            summary.cut.extend((cut > 0).then_some((i, cut as u64)));
            inputs.push(tokens);
        }
        let answer = handle.clone();
        let on_done = move |result: Result<Vec<Vec<f32>>, EngineError>| {
            // JSON has no NaN and no infinity, so this message would break the connection.
            let has_non_finite =
                |vectors: &Vec<Vec<f32>>| vectors.iter().flatten().any(|x| !x.is_finite());
            answer.send(match result {
                Ok(vectors) if has_non_finite(&vectors) => {
                    Event::Error(ApiError::bad_request("embedding contains NaN or Inf values"))
                }
                Ok(vectors) => Event::Embedded(EmbedResult { vectors, ..summary }),
                Err(error) => Event::Error(to_api_error(error)),
            });
        };
        self.record_request(&handle, self.model.embed(handle.client, inputs, Box::new(on_done)))
    }

    /// Returns the tokens of a text, and how many were cut. A text that is too long loses tokens at
    /// its end, but keeps the token that ends every text.
    fn embed_tokens(
        &self,
        handle: &TaskHandle,
        text: &EmbedText,
        task: &EmbedTask,
    ) -> Result<(Vec<u32>, usize), ApiError> {
        let limit = self.context(task.num_ctx) as usize;
        let mut tokens = match text {
            EmbedText::Text(text) => {
                self.check_text_bytes("the input", text.len(), task.num_ctx)?;
                self.model.encode(text, handle.cancelled())?
            }
            EmbedText::Tokens(tokens) => self.check_tokens(tokens).map(|()| tokens.clone())?,
        };
        if tokens.is_empty() {
            return Err(ApiError::bad_request(
                "the input is empty, and the model adds no start token",
            ));
        }
        let length = tokens.len();
        if length <= limit {
            return Ok((tokens, 0));
        }
        if !task.truncate {
            return Err(ApiError::bad_request("the input length exceeds the context length"));
        }
        let frame = self.model.encode("", handle.cancelled())?;
        let ends =
            tokens.last() == frame.last() && (frame.len() > 1 || tokens.first() != frame.first());
        let last = tokens.last().copied().filter(|_| ends && !frame.is_empty());
        tokens.truncate(limit - usize::from(last.is_some()));
        tokens.extend(last);
        let cut = length - tokens.len();
        Ok((tokens, cut))
    }
}
