#pragma once
// What systemd is told of a daemon that it starts as Type=notify: one datagram for each change.
#include <string>
#include <string_view>

#include "common/status.h"

namespace ems {

// Sends `state`, lines like "READY=1" and "STOPPING=1" (sd_notify(3)), to the datagram socket
// `socket`, the value of $NOTIFY_SOCKET: a path, or '@' and an abstract name. Does nothing where
// `socket` is empty: nobody waits. Cost: four system calls; never blocks.
// Errors: kInvalidArgument  a name that is too long, or neither a path nor abstract
//   kUnavailable  nobody listens there, or its queue is full
Status NotifyService(const std::string& socket, std::string_view state);

}  // namespace ems
