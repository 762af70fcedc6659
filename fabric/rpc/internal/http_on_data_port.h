#pragma once
// Browsers and scrapers that take the data port for one that speaks HTTP: they get an answer that
// they can show.
#include <algorithm>
#include <array>
#include <string_view>

#include "common/bytes.h"

namespace ems::fabric::internal {

inline constexpr std::string_view kHttpAnswer =
    "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    "This is an EMS data port, not HTTP: metrics and health are served on http_listen.\r\n";

inline bool LooksLikeHttp(ConstBytes bytes) {
  constexpr std::array<std::string_view, 6> kMethods = {"GET ", "POST", "HEAD",
                                                        "PUT ", "OPTI", "DELE"};
  return bytes.size() >= 4 && std::ranges::any_of(kMethods, [&](std::string_view method) {
           return AsText(bytes.first(4)) == method;
         });
}

}  // namespace ems::fabric::internal
