"""The same template with sentences as samples: a class is as likely as the sentences about it are near."""
