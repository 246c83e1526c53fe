//! A reader that catches up with a log, or with all of them, and then follows. After each interruption it goes on after
//! the last place that it knows.

use std::sync::Arc;
use std::time::Duration;

use forebay_wire::kurrent::streams::read_resp::Content;

use super::super::AGAIN;
use super::{After, Event, Link, is_passing};
use crate::dice::Dice;
use crate::history::Phase;
use crate::plan::Source;
use crate::world::{Server, Stage, World};

/// How long a reader waits for the next event before it looks whether the run is over.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// How a reader of a source is called.
pub(crate) fn name_of(source: Source) -> String {
    format!("reader of {}", source.stream())
}

pub(crate) async fn follow(world: Arc<World>, process: u32, source: Source, dice: Dice) {
    let mut reader = Reader { world, process, source, dice, after: After::Nothing };
    while let Some(server) = reader.world.listening().await {
        if let Some(address) = server.kurrent
            && let Ok(mut link) = Link::open(address).await
            && reader.world.is_still(server).await
        {
            reader.work(server, &mut link).await;
        }
        tokio::time::sleep(AGAIN).await;
    }
}

struct Reader {
    world: Arc<World>,
    process: u32,
    source: Source,
    dice: Dice,
    after: After,
}

impl Reader {
    async fn work(&mut self, server: Server, link: &mut Link) {
        let mut replies = match link.subscribe(self.source, self.after).await {
            Ok(replies) => replies,
            Err(status) => return self.refused(&status),
        };
        while self.world.stage() < Stage::Over {
            let reply = match tokio::time::timeout(LOOK_AGAIN, replies.message()).await {
                Err(_) => continue,
                Ok(Ok(Some(reply))) => reply,
                Ok(Ok(None)) => {
                    let what = format!("{}: the subscription came to an end", name_of(self.source));
                    return self.world.trouble(self.process, what);
                }
                Ok(Err(status)) => return self.refused(&status),
            };
            match reply.content {
                Some(Content::Event(read)) => {
                    let place = match self.source {
                        Source::All => read.event.as_ref().map(|event| event.commit_position),
                        Source::Log(_) => read.event.as_ref().map(|event| event.stream_revision),
                        Source::Category => read.link.as_ref().map(|link| link.stream_revision),
                    };
                    let (Some(event), Some(place)) = (read.event.as_ref().and_then(Event::read), place)
                    else {
                        let what = format!("{}: an event of no writer: {read:?}", name_of(self.source));
                        return self.world.trouble(self.process, what);
                    };
                    self.saw(server.run, &event);
                    self.after = After::Place(place);
                    // Now and then a reader goes, and comes again.
                    if self.world.stage() == Stage::Chaos && self.dice.permille(8) {
                        return;
                    }
                }
                Some(Content::Checkpoint(checkpoint)) => {
                    self.after = After::Place(checkpoint.commit_position);
                }
                _ => {}
            }
        }
    }

    fn saw(&self, run: u32, event: &Event) {
        let name = name_of(self.source);
        let fields = [
            ("reader", name.clone()),
            ("log", event.log.clone()),
            ("revision", event.revision.to_string()),
            ("position", event.position.to_string()),
            ("n", event.number.to_string()),
            ("content", event.digest.to_string()),
            ("run", run.to_string()),
        ];
        self.world.write(self.process, Phase::Ok, "saw", &fields);
        self.world.is_done_with(&name, event.number);
    }

    fn refused(&self, status: &tonic::Status) {
        if !is_passing(status) {
            self.world.trouble(self.process, format!("{} was refused: {status}", name_of(self.source)));
        }
    }
}
