#pragma once
// Who wants to know what comes to the SSD and what goes from it.
#include "mp_server/ssd/record.h"

namespace ems::ssd {

// Called under a lock of the index: must be cheap and take no lock. Threading: thread-safe.
class StoredObserver {
 public:
  virtual ~StoredObserver() = default;
  virtual void OnStored(const ObjectName& name) = 0;
  virtual void OnDropped(const ObjectName& name) = 0;
};

}  // namespace ems::ssd
