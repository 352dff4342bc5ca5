package verdict

import "time"

// maxRetry keeps delays within the range of timers and due times. It is a hundred years, in seconds.
const maxRetry = 100 * 365 * 24 * 3600

// boundDelay limits a delay that a user has chosen.
func boundDelay(d time.Duration) time.Duration { return min(max(d, 0), maxRetry*time.Second) }
