use super::{Ctx, Outcome, Request};
pub fn handle(_: &mut Ctx<'_>, _: &Request) -> Outcome {
    Outcome::Close("soon")
}
