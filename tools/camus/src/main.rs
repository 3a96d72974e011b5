mod board;
mod cores;
mod data_dir;
mod errors;
#[cfg(test)]
mod golden;
mod http;
mod memory;
mod metrics;
mod out;
mod serve;
mod settings;
mod shutdown;
fn main() {}
