#include "proto/kept_page.h"

namespace ems::wire {

void AppendTo(const KeptPage& page, std::vector<std::byte>* body) {
  const ConstBytes raw = RawBytes(page.head);
  body->insert(body->end(), raw.begin(), raw.end());
  AppendTo(page.keys, body);
}

Result<KeptPage> ParseKeptPage(ConstBytes body) {
  if (body.size() < sizeof(KeptPageHead))
    return Error(StatusCode::kDataLoss, "list of kept keys of {} bytes", body.size());
  KeptPage page;
  page.head = ReadRaw<KeptPageHead>(body.first(sizeof(KeptPageHead)));
  EMS_ASSIGN_OR_RETURN(page.keys, ParseKeyPage(body.subspan(sizeof(KeptPageHead))));
  return page;
}

}  // namespace ems::wire
