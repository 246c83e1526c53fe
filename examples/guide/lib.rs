//! The guide, so that its Rust code is compiled and run like every other example.
//!
//! Chapters whose code stands by itself are doc tests. Chapters about the examples quote from them, and a test sees
//! that the quotes are there.

#[doc = include_str!("../../docs/guide/publishing.md")]
pub mod publishing {}

#[doc = include_str!("../../docs/guide/workers.md")]
pub mod workers {}

#[doc = include_str!("../../docs/guide/outbox.md")]
pub mod outbox {}

#[cfg(test)]
mod tests {
    /// The Rust code in a chapter, a piece at a time.
    fn quoted(chapter: &str) -> Vec<&str> {
        chapter.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect()
    }

    #[test]
    fn what_the_guide_quotes_is_in_the_examples() {
        for (chapter, source) in [
            (include_str!("../../docs/guide/example-orders.md"), include_str!("../orders/main.rs")),
            (include_str!("../../docs/guide/example-emails.md"), include_str!("../emails/main.rs")),
            (include_str!("../../docs/guide/example-webhooks.md"), include_str!("../webhooks/receiver.rs")),
            (include_str!("../../docs/guide/example-outbox.md"), include_str!("../outbox/main.rs")),
            (include_str!("../../docs/guide/exactly-once.md"), include_str!("../invoices/main.rs")),
        ] {
            assert_ne!(quoted(chapter).len(), 0, "{chapter}");
            for quote in quoted(chapter) {
                assert!(source.contains(quote), "this is not in the example any more:\n{quote}");
            }
        }
    }
}
