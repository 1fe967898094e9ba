//! Work on several items at a time.

use tokio::task::JoinSet;

use crate::TrainError;
use crate::blocking::joined;

/// Number of items at a time. The store answers one request while others are on their way.
const AT_ONCE: usize = 4;

/// Does `work` for each item, some at a time. Returns the results in the order of the items.
///
/// # Errors
/// The error of the first work that fails. The rest of the work ends then.
pub(crate) async fn in_order<T, R, E, F>(
    items: impl IntoIterator<Item = T>,
    work: impl Fn(T) -> F,
) -> Result<Vec<R>, E>
where
    F: Future<Output = Result<R, E>> + Send + 'static,
    R: Send + 'static,
    E: From<TrainError> + Send + 'static,
{
    let mut items = items.into_iter().enumerate();
    let (mut running, mut done) = (JoinSet::new(), Vec::new());
    loop {
        while running.len() < AT_ONCE
            && let Some((place, item)) = items.next()
        {
            let work = work(item);
            running.spawn(async move { (place, work.await) });
        }
        let Some(finished) = running.join_next().await else { break };
        let (place, result) = joined(finished)?;
        done.push((place, result?));
    }
    done.sort_unstable_by_key(|(place, _)| *place);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn results_come_in_order_of_some_items_at_a_time() {
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let work = |item: usize| {
            let (running, most) = (running.clone(), most.clone());
            async move {
                most.fetch_max(running.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                // The first items take longest.
                for _ in item..10 {
                    tokio::task::yield_now().await;
                }
                running.fetch_sub(1, Ordering::Relaxed);
                Ok::<_, TrainError>(item * item)
            }
        };
        let squares = in_order(0..10, work).await.unwrap();
        assert_eq!(squares, (0..10).map(|item| item * item).collect::<Vec<_>>());
        assert_eq!(most.load(Ordering::Relaxed), AT_ONCE);
        let fails = |item| std::future::ready(if item == 7 { Err(TrainError::Cancelled) } else { Ok(item) });
        assert!(matches!(in_order(0..10, fails).await, Err(TrainError::Cancelled)));
    }
}
