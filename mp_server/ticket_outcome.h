#pragma once
// How a Remove goes on that the SSD tier has to take.
#include "mp_server/request_check.h"
#include "mp_server/ssd/ssd_tier.h"

namespace ems::server {

inline fabric::Outcome OutcomeOf(const ssd::Ticket& ticket, Refusal* refusal) {
  using wire::WireStatus;
  if (ticket.state() == ssd::Ticket::State::kDone) return {WireStatus::kOk};
  if (ticket.state() == ssd::Ticket::State::kFailed) {
    return {refusal->Say(WireStatus::kNotDurable, "the SSD tier cannot forget it now",
                         kRetryDurableMs)};
  }
  return {refusal->Say(WireStatus::kNotDurable, "the SSD tier is slow", kRetryDurableMs), kWakeSoon,
          kDurablePatience};
}

}  // namespace ems::server
