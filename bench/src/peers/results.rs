//! The results as they are stored beside the table: the table and the plots can be made from them again.

use serde::{Deserialize, Serialize};

use super::contender;
use super::workloads::Sample;
use crate::measure::median;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Results {
    /// `2026-11-15`.
    pub(crate) date: String,
    pub(crate) rounds: u64,
    /// How long a figure was measured in each round.
    pub(crate) seconds: f64,
    pub(crate) machine: Machine,
    pub(crate) contenders: Vec<About>,
    /// Servers that were not measured, and why.
    pub(crate) absent: Vec<String>,
    pub(crate) cells: Vec<Cell>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) memory_gb: f64,
    pub(crate) kernel: String,
    pub(crate) file_system: String,
    /// Overwrites of one page, each synced, per second.
    pub(crate) syncs_per_second: f64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct About {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) settings: String,
    pub(crate) survives_power_loss: bool,
    pub(crate) acks_each: bool,
}

impl About {
    pub(crate) fn of(about: &contender::About) -> About {
        About {
            id: about.id.to_owned(),
            name: about.name.clone(),
            version: about.version.clone(),
            settings: about.settings.clone(),
            survives_power_loss: about.survives_power_loss,
            acks_each: about.acks_each,
        }
    }

    /// The name as it stands in tables: a server that promises less says so beside every figure.
    pub(crate) fn title(&self) -> String {
        if self.acks_each { self.name.clone() } else { format!("{} (log: commits an offset)", self.name) }
    }

    /// Forebay and the floors are not what it is compared with as a peer.
    pub(crate) fn is_peer(&self) -> bool {
        !["forebay", "floor", "floor-grpc"].contains(&self.id.as_str())
    }
}

/// One workload on one server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Cell {
    pub(crate) workload: String,
    pub(crate) contender: String,
    /// Why there are no figures, or fewer.
    pub(crate) note: Option<String>,
    /// One of each round.
    pub(crate) samples: Vec<Sample>,
}

/// A figure over all rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Figure {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Results {
    pub(crate) fn cell(&self, workload: &str, contender: &str) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.workload == workload && cell.contender == contender)
    }

    pub(crate) fn cell_mut(&mut self, workload: &str, contender: &str) -> &mut Cell {
        let at = self.cells.iter().position(|cell| cell.workload == workload && cell.contender == contender);
        let at = at.unwrap_or_else(|| {
            let (workload, contender) = (workload.to_owned(), contender.to_owned());
            self.cells.push(Cell { workload, contender, note: None, samples: Vec::new() });
            self.cells.len() - 1
        });
        &mut self.cells[at]
    }

    pub(crate) fn figure(&self, workload: &str, contender: &str, name: &str) -> Option<Figure> {
        let samples = &self.cell(workload, contender)?.samples;
        let mut values: Vec<f64> = samples.iter().filter_map(|sample| sample.get(name).copied()).collect();
        if values.is_empty() {
            return None;
        }
        let median = median(&mut values);
        Some(Figure { median, min: values[0], max: values[values.len() - 1] })
    }

    pub(crate) fn median(&self, workload: &str, contender: &str, name: &str) -> Option<f64> {
        self.figure(workload, contender, name).map(|figure| figure.median)
    }

    /// The peer with the best median, of those that do or do not survive a loss of power and ack each message.
    pub(crate) fn best(
        &self,
        workload: &str,
        name: &str,
        is_syncing: bool,
        is_more_better: bool,
    ) -> Option<(&About, f64)> {
        let is_meant = |of: &About| of.acks_each && of.survives_power_loss == is_syncing;
        self.best_of(workload, name, is_more_better, is_meant)
    }

    /// The log with the best median: of those that survive a loss of power, or of all.
    pub(crate) fn best_log(
        &self,
        workload: &str,
        name: &str,
        is_syncing: bool,
        is_more_better: bool,
    ) -> Option<(&About, f64)> {
        let is_meant = |of: &About| !of.acks_each && (of.survives_power_loss || !is_syncing);
        self.best_of(workload, name, is_more_better, is_meant)
    }

    fn best_of(
        &self,
        workload: &str,
        name: &str,
        is_more_better: bool,
        is_meant: impl Fn(&About) -> bool,
    ) -> Option<(&About, f64)> {
        let peers = self.contenders.iter().filter(|of| of.is_peer() && is_meant(of));
        let figures = peers.filter_map(|peer| Some((peer, self.median(workload, &peer.id, name)?)));
        figures.reduce(|best, other| if (other.1 > best.1) == is_more_better { other } else { best })
    }

    /// Workloads of which anything was measured, in the order in which they ran.
    pub(crate) fn has(&self, workload: &str) -> bool {
        self.cells.iter().any(|cell| cell.workload == workload && !cell.samples.is_empty())
    }
}

#[cfg(test)]
pub(crate) fn example() -> Results {
    let about = |id: &str, survives_power_loss| About {
        id: id.to_owned(),
        name: id.to_uppercase(),
        version: "1".to_owned(),
        settings: String::new(),
        survives_power_loss,
        acks_each: !id.starts_with("log"),
    };
    let machine = Machine {
        processor: "p".to_owned(),
        cores: 2,
        memory_gb: 8.0,
        kernel: "k".to_owned(),
        file_system: "f".to_owned(),
        syncs_per_second: 2_000.0,
    };
    let contenders = vec![
        about("forebay", true),
        about("floor", true),
        about("careful", true),
        about("careless", false),
        about("log", false),
        about("log-sync", true),
    ];
    let mut results = Results {
        date: "2026-01-31".to_owned(),
        rounds: 3,
        seconds: 2.0,
        machine,
        contenders,
        absent: vec!["other: not there".to_owned()],
        cells: Vec::new(),
    };
    for (contender, rates) in [
        ("forebay", [900.0, 1_000.0, 1_100.0]),
        ("floor", [2_000.0, 2_000.0, 2_000.0]),
        ("careful", [100.0, 90.0, 110.0]),
        ("careless", [300.0, 200.0, 250.0]),
        ("log", [2_500.0, 2_500.0, 2_500.0]),
        ("log-sync", [400.0, 400.0, 400.0]),
    ] {
        let sample = |rate| Sample::from([("rate".to_owned(), rate), ("cpu_us".to_owned(), 1.5)]);
        results.cell_mut("steady-100", contender).samples = rates.map(sample).to_vec();
    }
    results
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_peer_is_neither_forebay_nor_a_floor() {
        let results = example();
        let best = |is_syncing| {
            results.best("steady-100", "rate", is_syncing, true).map(|(of, rate)| (of.id.clone(), rate))
        };
        assert_eq!(best(true), Some(("careful".to_owned(), 100.0)));
        assert_eq!(best(false), Some(("careless".to_owned(), 250.0)));
        let log = |is_syncing| {
            results.best_log("steady-100", "rate", is_syncing, true).map(|(of, rate)| (of.id.clone(), rate))
        };
        assert_eq!(log(true), Some(("log-sync".to_owned(), 400.0)));
        assert_eq!(log(false), Some(("log".to_owned(), 2_500.0)));
        let figure = results.figure("steady-100", "forebay", "rate");
        assert_eq!(figure, Some(Figure { median: 1_000.0, min: 900.0, max: 1_100.0 }));
        assert_eq!(results.figure("steady-1k", "forebay", "rate"), None);
    }
}
