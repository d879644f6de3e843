//! Why a call is outside the scope of its token, in words that follow those of the contract. A sentence
//! names only the call and the token's own scope: nothing that the token may not see.

use oubliette_model::{Access, Mode, Scope};

use crate::EngineError;

impl EngineError {
    pub(crate) fn refused(reason: impl Into<String>) -> Self {
        Self::Refused {
            parameter: None,
            reason: reason.into(),
        }
    }

    pub(crate) fn refused_parameter(parameter: &'static str, reason: impl Into<String>) -> Self {
        Self::Refused {
            parameter: Some(parameter),
            reason: reason.into(),
        }
    }

    /// The scope allows no operation of this class. `name` is the operation or a tool with several.
    pub(crate) fn refused_operation(scope: Scope, name: &str, access: Access) -> Self {
        Self::refused(match (access, scope) {
            (Access::Admin, _) => {
                format!("`{name}` needs an `admin` token; the scope of this token is `{scope}`")
            }
            (_, Scope::Read | Scope::AdminRead | Scope::Project(_, Mode::Read)) => {
                format!("`{name}` needs write access; this token (`{scope}`) may only read")
            }
            (Access::Global(_) | Access::Project(_), _) => {
                format!(
                    "`{name}` needs a `write` or `admin` token; the scope of this token is `{scope}`"
                )
            }
        })
    }

    /// The scope does not allow to set a parameter that project tokens may not set.
    pub(crate) fn refused_restricted(scope: Scope, parameter: &'static str) -> Self {
        let reason = format!(
            "this token (`{scope}`) may not set `{parameter}`; a `write` or `admin` token can"
        );
        Self::refused_parameter(parameter, reason)
    }

    /// An agent may not do this in its own tree of sessions.
    pub(crate) fn refused_in_own_tree(parameter: Option<&'static str>) -> Self {
        match parameter {
            Some(parameter) => {
                let reason = format!(
                    "an agent may not set `{parameter}` where it bounds the agent's own sessions, \
                     whatever its scope; a token that is not an agent's can"
                );
                Self::refused_parameter(parameter, reason)
            }
            None => Self::refused(
                "an agent may not decide requests of its own tree of sessions, whatever its scope; the \
                 caller that started the tree can",
            ),
        }
    }

    /// The call comes from a container, and it is unknown which agent makes it.
    pub(crate) fn refused_unattached(parameter: Option<&'static str>) -> Self {
        let what = match parameter {
            Some(parameter) => format!("may not set `{parameter}`"),
            None => {
                "may not decide requests, see or continue the work of sessions, start sessions, create what \
                 starts them, or respond for a caller"
                    .to_owned()
            }
        };
        Self::Refused {
            parameter,
            reason: format!(
                "a call from a container on a connection that is attached to no session {what}"
            ),
        }
    }

    /// The token was valid when the call began.
    pub(crate) fn refused_ended_token() -> Self {
        Self::refused("this token has been revoked or has expired")
    }
}
