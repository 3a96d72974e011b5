//! The command line: what can be asked of the binary, and which part answers.

use crate::errors::{self, UserError};
use crate::settings::{self, Settings, Sources};
use crate::shutdown::Shutdown;
use crate::{bench, compatibility, cores, doctor, out, process, serve, topic, wal, waltest};
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use std::sync::Arc;

/// A Kafka-compatible streaming log. An acknowledged record is on the disk.
#[derive(Parser, Debug)]
#[command(name = "camus", version, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run the broker.
    Serve(ServeArgs),
    /// Make, list, describe and delete topics of a running broker.
    Topic {
        /// A broker's listener.
        #[arg(long, global = true, value_name = "HOST:PORT", default_value = "127.0.0.1:9092")]
        bootstrap: String,
        #[command(subcommand)]
        command: TopicCommand,
    },
    /// Look into the write-ahead log of a broker that is not running.
    Wal {
        /// The broker's data directory.
        #[arg(long, global = true, value_name = "DIR", default_value = "camus-data")]
        data_dir: PathBuf,
        #[command(subcommand)]
        command: WalCommand,
    },
    /// Measure how fast a Kafka-compatible broker answers, at what cost, and whether it flushes.
    Bench {
        #[command(subcommand)]
        command: Box<bench::BenchCommand>,
    },
    /// Say whether this disk and this host are fit for a broker; changes nothing.
    ///
    /// Takes the settings of `serve`. Exit status: 0 all pass, 1 a warning, 2 a failure.
    Doctor(DoctorArgs),
    /// Measure the disk's durable write by itself, as the write-ahead log does it.
    Waltest {
        /// On the disk that is meant. A file is made there and taken away again.
        dir: PathBuf,
        /// Size of the file. A drive with a cache of its own may be slower in a larger one.
        #[arg(long, value_name = "MIB", default_value_t = waltest::FILE_BYTES >> 20,
              value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
        file_mib: u64,
        /// How long each row is measured.
        #[arg(long, value_name = "S", default_value_t = 1.5, value_parser = seconds)]
        seconds: f64,
        /// Write the figures there as well; `-` prints only them.
        #[arg(long, value_name = "FILE|-")]
        json: Option<String>,
    },
    /// Tell what a setting means, or all of them.
    Settings {
        /// A setting, as in the file or as in the environment.
        name: Option<String>,
        /// Write docs/settings.md.
        #[arg(long, hide = true)]
        markdown: bool,
    },
    /// Write the first part of docs/compatibility.md.
    #[command(hide = true)]
    Compatibility,
    /// Tell what an error code means.
    Explain {
        /// As printed in the error: CAM-0102.
        code: String,
    },
}

#[derive(Args, Debug, Default)]
pub struct ServeArgs {
    /// A TOML file of settings.
    #[arg(long, value_name = "FILE", env = "CAMUS_CONFIG")]
    pub config: Option<PathBuf>,
    /// Where everything lies that must survive [default: camus-data].
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<String>,
    /// Where Kafka clients connect [default: 127.0.0.1:9092].
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<String>,
    /// Where /livez, /readyz and /metrics are [default: 127.0.0.1:9644].
    #[arg(long, value_name = "HOST:PORT")]
    pub http: Option<String>,
    /// Pinned threads: a number, or the CPUs to use (`0,2,4-7`).
    #[arg(long, value_name = "LIST|N")]
    pub cores: Option<String>,
    /// How the kernel is asked: auto, uring, blocking.
    #[arg(long, value_name = "HOW")]
    pub io: Option<String>,
    /// What drives a core: auto (as --io says), uring, poll, glommio (in builds with the feature shell-glommio).
    #[arg(long, value_name = "NAME")]
    pub shell: Option<String>,
    /// Any setting; may be given more than once. `camus settings` lists them.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

#[derive(Args, Debug)]
pub struct DoctorArgs {
    #[command(flatten)]
    pub serve: ServeArgs,
    /// How long each of the two measurements of the disk takes.
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = seconds)]
    pub seconds: f64,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// A time that a measurement may take.
fn seconds(text: &str) -> Result<f64, String> {
    let parsed = text.parse::<f64>().ok().filter(|seconds| (0.05..=600.0).contains(seconds));
    parsed.ok_or_else(|| "it takes seconds, 0.05 to 600".to_owned())
}

#[derive(Subcommand, Debug)]
pub enum TopicCommand {
    /// Make a topic.
    Create {
        topic: String,
        /// Where nothing is said: the broker's num.partitions.
        #[arg(long, value_name = "N")]
        partitions: Option<i32>,
        #[arg(long, value_name = "N")]
        replication_factor: Option<i16>,
        /// A topic setting; may be given more than once.
        #[arg(long = "config", value_name = "KEY=VALUE")]
        configs: Vec<String>,
    },
    /// List all topics.
    List,
    /// Show a topic's partitions, offsets and settings.
    Describe { topic: String },
    /// Delete a topic and its records.
    Delete { topic: String },
}

#[derive(Subcommand, Debug)]
pub enum WalCommand {
    /// Print every record's head, in the order in which they were written.
    Dump,
    /// Check every block group and record; tell what is damaged and what is behind it.
    Verify,
}

/// Does what was asked for; how the process is to end.
pub fn run(cli: Cli) -> Result<u8, UserError> {
    let done: Result<(), UserError> = match cli.command {
        Command::Serve(args) => {
            let settings = Settings::resolve(&sources(&args, std::env::vars_os())?)?;
            start_log(&settings.log)?;
            process::end_on_panic();
            serve::run(settings, &Arc::new(Shutdown::default()), &cores::start)
        }
        Command::Topic { bootstrap, command } => {
            let text = match &command {
                TopicCommand::Create { topic, partitions, replication_factor, configs } => {
                    let configs = configs.iter().map(|c| key_value(c, "--config")).collect::<Result<Vec<_>, _>>()?;
                    topic::create(&bootstrap, topic, *partitions, *replication_factor, &configs)?
                }
                TopicCommand::List => topic::list(&bootstrap)?,
                TopicCommand::Describe { topic } => topic::describe(&bootstrap, topic)?,
                TopicCommand::Delete { topic } => topic::delete(&bootstrap, topic)?,
            };
            out::line(text);
            Ok(())
        }
        Command::Wal { data_dir, command } => match command {
            WalCommand::Dump => wal::dump(&data_dir),
            WalCommand::Verify => wal::verify(&data_dir),
        },
        Command::Bench { command } => bench::run(*command),
        Command::Doctor(args) => {
            let settings = Settings::resolve(&sources(&args.serve, std::env::vars_os())?)?;
            return doctor::run(&settings, args.seconds, args.json);
        }
        Command::Waltest { dir, file_mib, seconds, json } => {
            waltest::run(&dir, file_mib << 20, seconds, json.as_deref())
        }
        Command::Settings { markdown: true, .. } => {
            out::line(settings::page().trim_end());
            Ok(())
        }
        Command::Settings { name: None, .. } => {
            out::line(settings::overview());
            Ok(())
        }
        Command::Settings { name: Some(name), .. } => {
            let found = settings::SETTINGS.iter().find(|s| s.name == name || settings::env_name(s.name) == name);
            let found =
                found.ok_or_else(|| errors::unknown_setting(&name, "command line", settings::nearest(&name)))?;
            out::line(settings::describe(found, false).trim_end());
            Ok(())
        }
        Command::Compatibility => {
            out::line(compatibility::page().trim_end());
            Ok(())
        }
        Command::Explain { code } => {
            out::line(errors::explain(&code)?);
            Ok(())
        }
    };
    done.map(|()| errors::exit::OK)
}

/// Gathers where settings come from. A variable that is no UTF-8 is read as well as it can be: it is wrong anyway.
fn sources(
    args: &ServeArgs,
    env: impl Iterator<Item = (std::ffi::OsString, std::ffi::OsString)>,
) -> Result<Sources, UserError> {
    let file = match &args.config {
        None => None,
        Some(path) => {
            let text =
                std::fs::read_to_string(path).map_err(|e| errors::bad_config_file(path, None, &e.to_string()))?;
            Some((path.clone(), text))
        }
    };
    let env = env.map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()));
    let mut flags = Vec::new();
    for set in &args.set {
        let (name, value) = key_value(set, "--set")?;
        flags.push((name, value, format!("--set {set}")));
    }
    let named = [
        ("--data-dir", "camus.data.dir", &args.data_dir),
        ("--listen", "listeners", &args.listen),
        ("--http", "camus.http", &args.http),
        ("--cores", "camus.cores", &args.cores),
        ("--io", "camus.io", &args.io),
        ("--shell", "camus.shell", &args.shell),
    ];
    for (flag, name, value) in named {
        if let Some(value) = value {
            flags.push((name.to_owned(), value.clone(), format!("{flag} {value}")));
        }
    }
    Ok(Sources { file, env: env.filter(|(name, _)| name.starts_with("CAMUS_")).collect(), flags })
}

fn key_value(text: &str, flag: &str) -> Result<(String, String), UserError> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() => Ok((name.trim().to_owned(), value.trim().to_owned())),
        _ => Err(errors::bad_value(flag, text, "it takes KEY=VALUE", "command line")),
    }
}

fn start_log(filter: &str) -> Result<(), UserError> {
    let parsed = filter
        .parse::<tracing_subscriber::EnvFilter>()
        .map_err(|e| errors::bad_value("camus.log", filter, &e.to_string(), "settings"))?;
    tracing_subscriber::fmt().with_env_filter(parsed).with_writer(std::io::stderr).with_ansi(false).init();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_are_settings_and_say_how_they_were_written() {
        let cli = Cli::try_parse_from([
            "camus",
            "serve",
            "--listen",
            "127.0.0.1:1",
            "--data-dir",
            "d",
            "--http",
            "127.0.0.1:2",
            "--cores",
            "2",
            "--io",
            "blocking",
            "--set",
            "num.partitions=3",
            "--set",
            "camus.memory = 1GiB",
        ]);
        let Command::Serve(args) = cli.expect("it parses").command else { panic!("serve was asked for") };
        let sources = sources(&args, std::iter::empty()).expect("well formed");
        let settings = Settings::resolve(&sources).expect("valid");
        assert_eq!(settings.num_partitions, 3);
        assert_eq!(settings.data_dir, PathBuf::from("d"));
        assert_eq!(settings.listeners[0].port, 1);
        assert_eq!(settings.http.port, 2);
        assert_eq!(settings.io, settings::IoAsked::Blocking);
        assert_eq!(settings.cores, settings::CoresAsked::Number(2));
        assert!(sources.flags.iter().any(|(_, _, how)| how == "--listen 127.0.0.1:1"));
        let wrong = ServeArgs { set: vec!["num.partitions".to_owned()], ..ServeArgs::default() };
        assert_eq!(super::sources(&wrong, std::iter::empty()).expect_err("no value").code, "CAM-0002");
        let missing = ServeArgs { config: Some(PathBuf::from("/nowhere/camus.toml")), ..ServeArgs::default() };
        assert_eq!(super::sources(&missing, std::iter::empty()).expect_err("no file").code, "CAM-0003");
    }
}
