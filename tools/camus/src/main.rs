mod data_dir;
mod errors;
#[cfg(test)]
mod golden;
mod memory;
mod out;
mod settings;
fn main() {}
