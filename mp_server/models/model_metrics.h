#pragma once
// What this server counts of its part of model caching.
#include "common/metrics.h"

namespace ems::server {

// Threading: thread-safe.
struct ModelMetrics {
  explicit ModelMetrics(MetricsRegistry* registry)
      : source_bytes(registry->AddCounter("ems_server_model_source_bytes_total",
                                          "Bytes of models read from their sources")),
        promoted_bytes(registry->AddCounter("ems_server_model_promoted_bytes_total",
                                            "Bytes of models brought back from the SSD")),
        shared_bytes(registry->AddCounter(
            "ems_server_model_shared_bytes_total",
            "Bytes read from a source that were here already, as a block of another version")),
        failed_pulls(registry->AddCounter("ems_server_model_failed_pulls_total",
                                          "Blocks of models that could not be brought in")),
        failed_checks(registry->AddCounter(
            "ems_server_model_failed_checks_total",
            "Tries to add up blocks of a file, or to tell of it, that failed; each is repeated")),
        checked_bytes(
            registry->AddCounter("ems_server_model_checked_bytes_total",
                                 "Bytes of models that were added to the sums of their files")) {}
  Counter source_bytes, promoted_bytes, shared_bytes, failed_pulls, failed_checks, checked_bytes;
};

}  // namespace ems::server
