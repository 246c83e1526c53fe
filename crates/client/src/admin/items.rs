//! Lists without pages: each item comes when it is asked for, and a page is fetched when the one before is used up.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::stream::{self, Stream, StreamExt as _};

use super::Page;
use crate::error::CallError;

/// Everything that a list has, page after page. It is a [`Stream`], and its own `next` needs no further crate. It ends
/// after the last item, and after an error.
///
/// ```no_run
/// # async fn example(client: forebay_client::Client) -> Result<(), forebay_client::CallError> {
/// let mut streams = client.streams();
/// while let Some(stream) = streams.next().await {
///     let stream = stream?;
///     println!("{} has {} messages", stream.stream, stream.messages);
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is fetched until an item is asked for"]
pub struct Items<T>(Pin<Box<dyn Stream<Item = Result<T, CallError>> + Send>>);

impl<T: Send + 'static> Items<T> {
    /// The items of all pages. `page` fetches the one that begins at a place; the first one begins at `None`.
    pub(super) fn of<C, F, Fut>(page: F) -> Items<T>
    where
        C: Send + 'static,
        F: Fn(Option<C>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<Page<T, C>, CallError>> + Send + 'static,
    {
        // The outer `None` is the end.
        let pages = stream::unfold(Some(None), move |place| {
            let fetched = place.map(&page);
            async move {
                Some(match fetched?.await {
                    Ok(Page { items, next }) => (Ok(items), next.map(Some)),
                    Err(error) => (Err(error), None),
                })
            }
        });
        let items = pages.flat_map(|page| match page {
            Ok(items) => stream::iter(items).map(Ok).left_stream(),
            Err(error) => stream::iter([Err(error)]).right_stream(),
        });
        Items(Box::pin(items))
    }

    /// The next item, or `None` after the last one.
    pub async fn next(&mut self) -> Option<Result<T, CallError>> {
        self.0.next().await
    }
}

impl<T> Stream for Items<T> {
    type Item = Result<T, CallError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().0.as_mut().poll_next(cx)
    }
}

impl<T> fmt::Debug for Items<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Items").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Advice;

    #[tokio::test]
    async fn pages_are_fetched_one_after_the_other_until_the_last() {
        let mut items = Items::of(|place: Option<u32>| async move {
            let place = place.unwrap_or(0);
            // The page in the middle has no items, as a filter can have it.
            let items = if place == 1 { vec![] } else { vec![place * 10, place * 10 + 1] };
            Ok(Page { items, next: Some(place + 1).filter(|next| *next < 3) })
        });
        let mut seen = Vec::new();
        while let Some(item) = items.next().await {
            seen.push(item.expect("no page fails"));
        }
        assert_eq!(seen, [0, 1, 20, 21]);
    }

    fn refusal() -> CallError {
        CallError::Refused { kind: None, detail: "no such stream".to_owned(), advice: Advice::FixRequest }
    }

    #[tokio::test]
    async fn an_error_is_the_last_item() {
        let items = Items::of(|place: Option<u32>| async move {
            match place {
                None => Ok(Page { items: vec![1], next: Some(1) }),
                Some(_) => Err(refusal()),
            }
        });
        let seen: Vec<_> = items.collect().await;
        assert!(matches!(seen[..], [Ok(1), Err(CallError::Refused { .. })]), "{seen:?}");
    }
}
