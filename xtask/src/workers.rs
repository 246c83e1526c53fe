//! `cargo xtask bench python`: workers of the package for Python, beside Celery on Redis.

use std::process::Command;

use crate::clients::cache::Cache;
use crate::clients::suites;
use crate::clients::tools::{self, Language};
use crate::services::find;

pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    crate::cargo(&crate::SERVER)?;
    let redis = find::redis().map_err(|missing| missing.to_string())?;
    let tools = tools::find(Language::Python).map_err(|missing| missing.to_string())?;
    let bench = crate::root().join("bench").join("python");
    let cache = Cache::open("bench")?;
    let python = suites::environment("python", &bench.join("requirements.txt"), &tools, &cache)?;
    drop(cache);
    let mut command = Command::new(python);
    command.arg(bench.join("workers.py")).arg("--redis").arg(redis);
    command.arg("--forebay").arg(crate::target()?.join("release").join("forebay")).args(arguments);
    command.env("PYTHONPATH", crate::root().join("clients").join("python").join("src"));
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    crate::finish(command, &["xtask", "bench", "python"])
}
