#pragma once
// Options of an RpcServer (listen addresses, bounds), and its metrics.
#include <cstdint>
#include <string>

#include "common/bytes.h"
#include "common/clock.h"
#include "common/copy_crew.h"
#include "common/metrics.h"

namespace ems::fabric {

struct RpcMetrics {
  Gauge connections;
  Counter accepted;
  Counter refused;         // over connections_max or a peer's share of them, or out of descriptors
  Counter made_room;       // closed while idle, near connections_max, for others
  Counter bad_frames;      // not EMS, damaged, or against the rules
  Counter timeouts;        // slow headers, slow readers, slow writers
  Counter slow_puts;       // of them, those whose values came too slowly
  Counter bytes_received;  // bodies
  Counter bytes_sent;
};

struct RpcServerOptions {
  std::string listen;         // host:port; port 0: any; empty: no TCP
  std::string unix_path;      // empty: none
  uint32_t unix_mode = 0660;  // of its file: who may connect
  uint32_t io_threads = 0;    // 0: one a core, 8 at most
  uint32_t connections_max = 1024;
  Duration header_timeout = std::chrono::seconds(5);
  Duration transfer_timeout = std::chrono::seconds(2);
  Duration idle_timeout = std::chrono::minutes(10);  // 0: never
  uint64_t value_bytes_max = 64 * kMiB;
  CopyCrew* crew = nullptr;  // helps with large staged values; must outlive the server
};

}  // namespace ems::fabric
