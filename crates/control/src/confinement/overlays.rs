//! What overlays need of the sandbox.

use hostlink::underlay::Transport;
use sandbox::{Layer, LayerReport, LayerState};

use crate::config::{Config, ControlPlane, LiveNeed, OverlaySpec};

/// Whether the daemon may have tunnels to other hosts.
pub(super) fn needs_overlays(config: &Config) -> bool {
    !config.overlays.is_empty() || config.sandbox.live.contains(&LiveNeed::Overlay)
}

/// Whether one of the overlays that the daemon starts with has EVPN.
pub(super) fn needs_evpn(config: &Config) -> bool {
    config.overlays.iter().any(|overlay| overlay.control == ControlPlane::Evpn)
}

/// Whether one of the overlays that the daemon starts with has a TAP device as its underlay.
pub(super) fn needs_tap(config: &Config) -> bool {
    config.overlays.iter().any(|overlay| matches!(overlay.transport, Transport::Tap(_)))
}

/// Whether one of the overlays that the daemon starts with has queues of a card as its underlay.
pub(super) fn needs_card(config: &Config) -> bool {
    config.overlays.iter().any(|overlay| matches!(overlay.transport, Transport::Card(_)))
}

/// Why an overlay cannot be added to a daemon that was started with `config`, and whose sandbox has
/// these layers.
pub fn refuses_overlay(
    config: &Config,
    layers: &[LayerReport],
    overlay: &OverlaySpec,
) -> Option<&'static str> {
    let filtered = layers.iter().any(|report| {
        report.layer == Layer::Seccomp && !matches!(report.state, LayerState::Missing(_))
    });
    if filtered && overlay.control == ControlPlane::Evpn && !needs_evpn(config) {
        return Some("the sandbox leaves nothing for EVPN; restart the daemon");
    }
    let lacks = match overlay.transport {
        Transport::Sockets => false,
        Transport::Tap(_) => !needs_tap(config),
        Transport::Card(_) => !needs_card(config),
    };
    if filtered && lacks {
        return Some("the sandbox leaves nothing for its underlay; restart the daemon");
    }
    (filtered && !needs_overlays(config)).then_some(
        "the sandbox leaves no sockets for overlays; give sandbox.live = [\"overlay\"], and \
         restart the daemon",
    )
}
