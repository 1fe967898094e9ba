//! Choosing paths within a text with the router of documents.

use std::sync::Arc;

use dipaco_shards::TokenRows;

use crate::{BoxError, TextRouter};

/// Chooses the path that continues a text with the router of documents, by the last tokens that are known.
///
/// The router was fitted on the first [`prefix_tokens`](crate::Router::prefix_tokens) tokens of documents. So it reads as many
/// tokens here, the last ones before the choice, or all tokens of the text if they are fewer. It reads them as if a text began
/// with them. No later token has an influence.
#[derive(Clone, Debug)]
pub struct RecentRouter {
    router: Arc<TextRouter>,
}

impl RecentRouter {
    /// Chooses by this router, of any kind.
    #[must_use]
    pub fn new(router: Arc<TextRouter>) -> Self {
        Self { router }
    }

    /// P, the number of paths.
    #[must_use]
    pub fn paths(&self) -> u32 {
        self.router.router().paths()
    }

    /// The score of each path for continuing each row after each position, (B, positions, P) row-major: the negative of the
    /// distance of the last tokens up to the position. Higher is better. `tokens` is (B, T), of any length; a position is the
    /// index of a token.
    ///
    /// # Errors
    ///
    /// A position is not below T, or the features can't be computed.
    pub fn scores(&self, tokens: &TokenRows, positions: &[usize]) -> Result<Vec<f32>, BoxError> {
        let (rows, time, paths) = (tokens.rows(), tokens.time(), self.paths() as usize);
        let read = self.router.router().prefix_tokens().max(1);
        let mut scores = vec![0f32; rows * positions.len() * paths];
        for (place, &position) in positions.iter().enumerate() {
            if position >= time {
                return Err(format!("there is no token {position} in a text of {time} tokens").into());
            }
            let end = position + 1;
            let last = end.saturating_sub(read)..end;
            let length = last.len();
            let texts: Vec<u32> =
                tokens.ids().chunks_exact(time).flat_map(|row| &row[last.clone()]).copied().collect();
            let texts = TokenRows::new(texts, rows, tokens.vocabulary())?;
            let routes = self.router.route(&texts, &vec![length; rows])?;
            for (row, route) in routes.into_iter().enumerate() {
                let start = (row * positions.len() + place) * paths;
                let own = scores[start..start + paths].iter_mut();
                own.zip(route.distances).for_each(|(score, distance)| *score = -distance);
            }
        }
        Ok(scores)
    }
}

#[cfg(test)]
mod tests;
